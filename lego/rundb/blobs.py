"""Token ids and log-probs as packed little-endian blobs, compressed when that pays."""

from __future__ import annotations

import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from lego.errors import StoreError

_RAW, _ZLIB = b"\x00", b"\x01"


def pack_bytes(data: bytes) -> bytes:
    """One marker byte, then the data, deflated if that makes it smaller."""
    packed = zlib.compress(data, 6) if len(data) > 64 else data
    return _ZLIB + packed if len(packed) < len(data) else _RAW + data


def unpack_bytes(blob: bytes) -> bytes:
    marker, body = blob[:1], blob[1:]
    if marker == _RAW:
        return body
    if marker == _ZLIB:
        return zlib.decompress(body)
    raise StoreError(f"a blob starts with {marker!r}: not written by this version")


def pack_ids(ids: npt.ArrayLike) -> bytes:
    """ids: [n] integers that fit int32."""
    return pack_bytes(np.asarray(ids, dtype="<i4").tobytes())


def unpack_ids(blob: bytes) -> npt.NDArray[np.int32]:
    return np.frombuffer(unpack_bytes(blob), dtype="<i4").astype(np.int32)


def pack_floats(values: npt.ArrayLike) -> bytes:
    """values: [n] floats, kept as float32."""
    return pack_bytes(np.asarray(values, dtype="<f4").tobytes())


def unpack_floats(blob: bytes) -> npt.NDArray[np.float32]:
    return np.frombuffer(unpack_bytes(blob), dtype="<f4").astype(np.float32)


def to_json(value: Any) -> str:
    """Compact JSON as SQLite takes it: what in an odd file name is no text (lone surrogates) is escaped, and comes
    back as it was."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=str)
    return text
