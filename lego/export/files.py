"""Rows written as a file, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from lego.errors import StoreError

Rows = Iterable[dict[str, Any]]


def write_jsonl(out: BinaryIO, rows: Rows) -> None:
    """One JSON object a line, UTF-8. Bytes of no text (a lone surrogate) become question marks."""
    for row in rows:
        out.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n")


def write_tokens_parquet(out: BinaryIO, rows: Rows) -> None:
    """Rows of the tokens format. Messages and tools, of no one shape, are JSON text.

    Raises StoreError where pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise StoreError(
            "Parquet needs pyarrow", fault="user", hint="pip install 'lego[parquet]', or name a .jsonl file"
        ) from error
    text, number, flag = pa.string(), pa.int64(), pa.bool_()
    schema = pa.schema(
        {
            **{name: number for name in ("trial", "round", "sample", "policy", "segment", "segments")},
            **{name: text for name in ("task", "harness", "split", "ending", "outcome", "messages", "tools")},
            **{name: pa.float64() for name in ("reward", "temperature")},
            "solved": flag, "tampered": flag, "policies": pa.list_(number),
            "ids": pa.list_(pa.int32()), "mask": pa.list_(pa.int8()), "logprobs": pa.list_(pa.float32()),
            "calls": pa.list_(pa.int32()),
        }
    )  # fmt: skip
    with pq.ParquetWriter(out, schema) as writer:
        source = iter(rows)
        while some := list(islice(source, 64)):
            flat = [row | {name: json.dumps(row[name]) for name in ("messages", "tools")} for row in some]
            writer.write_table(pa.Table.from_pylist(flat, schema))


def write_whole(target: Path, write: Callable[[BinaryIO, Rows], None], rows: Rows, *, force: bool) -> None:
    """Write aside, flush to the disk, then rename. Without `force` a file that is there stays, also one that comes
    meanwhile.

    Raises StoreError when the target is there or cannot be written.
    """
    if target.exists() and not force:
        raise _there(target)
    half = target.with_name(f".{target.name}.{os.getpid()}.writing")
    with _explained(target):
        try:
            with half.open("wb") as out:
                write(out, rows)
                out.flush()
                os.fsync(out.fileno())
            if force:
                os.replace(half, target)
            else:
                os.link(half, target)
            folder = os.open(target.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            half.unlink(missing_ok=True)


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise _there(target) from error
    except OSError as error:
        raise StoreError(
            f"cannot write {target}: {error.strerror}", fault="user", hint="-o FILE names a place"
        ) from error


def _there(target: Path) -> StoreError:
    return StoreError(f"{target} is there already", fault="user", hint="--force replaces it; -o FILE names another")
