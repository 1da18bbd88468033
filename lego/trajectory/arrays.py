"""The array types and small words that the token stream is made of."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

ROUNDED_UP = 1e-3
"""Nats above 0 up to which a log-prob is one: a log-softmax in half precision can round to just above."""

Finish = Literal["stop", "length", "abort"]
Kind = Literal["main", "subagent", "auxiliary"]
Sampler = Literal["policy", "script"]


class Fate(StrEnum):
    """What became of a reply.

    delivered: the harness received it whole. abandoned: it did not (client gone, stream cut); out of the loss.
    superseded: delivered, then deleted, rewritten or asked again by the harness; in the loss.
    """

    DELIVERED = "delivered"
    ABANDONED = "abandoned"
    SUPERSEDED = "superseded"


def as_ids(ids: Sequence[int] | IntArray) -> IntArray:
    """`ids` as [n] int32; no copy where it already is one."""
    return np.asarray(ids, dtype=np.int32)


def common_prefix(a: IntArray, b: IntArray) -> int:
    """Length of the longest common prefix of two id sequences."""
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


class Stream:
    """Ids that grow at their end. What was handed out stays as it was, and nothing before the end is copied again
    but when the room runs out, which then doubles."""

    def __init__(self, ids: IntArray) -> None:
        self._array = np.empty(max(1024, 2 * len(ids)), dtype=np.int32)
        self._array[: len(ids)] = ids
        self._used = len(ids)

    def extend(self, at: int, ids: Sequence[int] | IntArray) -> IntArray | None:
        """The first `at` ids and then `ids`, [at + len(ids)] int32; None where others already stand after `at`."""
        if at != self._used:
            return None
        end = at + len(ids)
        if end > len(self._array):
            before, self._array = self._array, np.empty(2 * end, dtype=np.int32)
            self._array[:at] = before[:at]
        self._array[at:end] = ids
        self._used = end
        view = self._array[:end]
        view.flags.writeable = False
        return view

    def ends_with(self, ids: IntArray, end: int) -> bool:
        """Whether its last ids are the very memory of `ids`, an own view, which ends at `end`."""
        return ids.base is self._array and end == self._used
