"""What was computed for earlier prompts, kept for the next turn of the same conversation, within a byte budget."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from lego.engine.base import IntArray

State = TypeVar("State")


@dataclass(frozen=True)
class Prefix(Generic[State]):
    """`state` is the model's memory of `ids` ([n] int32); `nbytes` is what it costs to keep. `routing` are the experts
    that the ids went to, where that is recorded."""

    session: str
    ids: IntArray
    state: State
    nbytes: int
    routing: npt.NDArray[np.int16] | None = None


def common_length(a: IntArray, b: IntArray) -> int:
    """How many leading ids two sequences share."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n


class PrefixStore(Generic[State]):
    """Least recently used prefixes are dropped first. `budget` is in bytes; a prefix larger than it is not kept."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.nbytes = 0
        self._kept: OrderedDict[int, Prefix[State]] = OrderedDict()
        self._next = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, prefix: Prefix[State]) -> None:
        """Keep `prefix`, in place of those of its session that it extends."""
        for key, old in list(self._kept.items()):
            extends = len(old.ids) <= len(prefix.ids) and common_length(old.ids, prefix.ids) == len(old.ids)
            if old.session == prefix.session and extends:
                self._drop(key)
        if prefix.nbytes > self.budget:
            return
        self._kept[self._next] = prefix
        self._next += 1
        self.nbytes += prefix.nbytes
        while self.nbytes > self.budget:
            self._drop(next(iter(self._kept)))

    def longest(self, ids: IntArray) -> tuple[Prefix[State] | None, int]:
        """The prefix that shares most leading ids with `ids`, of any session, and how many it shares."""
        best, length = None, 0
        for key, prefix in self._kept.items():
            shared = common_length(prefix.ids, ids)
            if shared > length:
                best, length = key, shared
        if best is None:
            return None, 0
        self._kept.move_to_end(best)
        return self._kept[best], length

    def take(self, ids: IntArray, session: str) -> Prefix[State] | None:
        """Remove and return the longest prefix of this session that `ids` begins with and goes beyond."""
        best, length = None, 0
        for key, prefix in self._kept.items():
            n = len(prefix.ids)
            if prefix.session == session and length < n < len(ids) and common_length(prefix.ids, ids) == n:
                best, length = key, n
        return self._drop(best) if best is not None else None

    def drop_session(self, session: str) -> None:
        for key in [k for k, prefix in self._kept.items() if prefix.session == session]:
            self._drop(key)

    def clear(self) -> None:
        self._kept.clear()
        self.nbytes = 0

    def _drop(self, key: int) -> Prefix[State]:
        prefix = self._kept.pop(key)
        self.nbytes -= prefix.nbytes
        return prefix
