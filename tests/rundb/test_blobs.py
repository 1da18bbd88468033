from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import StoreError
from lego.rundb import blobs


@given(st.lists(st.integers(0, 2**31 - 1), max_size=400))
def test_ids_come_back_as_they_went(ids: list[int]) -> None:
    assert blobs.unpack_ids(blobs.pack_ids(ids)).tolist() == ids


@given(st.lists(st.floats(-100, 0, width=32), max_size=400))
def test_log_probs_come_back_bit_for_bit(values: list[float]) -> None:
    back = blobs.unpack_floats(blobs.pack_floats(values))
    assert back.tobytes() == np.asarray(values, dtype=np.float32).tobytes()


@given(st.binary(max_size=2000))
def test_a_blob_never_grows_by_more_than_its_marker(data: bytes) -> None:
    packed = blobs.pack_bytes(data)
    assert len(packed) <= len(data) + 1
    assert blobs.unpack_bytes(packed) == data


def test_repetitive_data_is_compressed() -> None:
    assert len(blobs.pack_ids([7] * 10_000)) < 1_000


def test_an_unknown_marker_is_refused() -> None:
    with pytest.raises(StoreError, match="not written by this version"):
        blobs.unpack_bytes(b"\x09abc")
