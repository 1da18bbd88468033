"""Token sequences laid out as a forest: what several of them begin with is there, and is computed, once.

The tokens stand in one row. A token attends to itself and to its ancestors; its position is its depth. Sequences that
share nothing are trees of one branch each, so packing is the same layout without the sharing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lego.trajectory.arrays import IntArray

GRAIN = 16
"""Sequences part at multiples of this depth: up to 15 tokens are computed twice, so that no run of tokens between two
forks is too short to be worth an attention call of its own."""


@dataclass(frozen=True)
class Run:
    """Tokens [start, end) that follow one another without a fork; all of [end, reach) descends from the last one."""

    start: int
    end: int
    reach: int


@dataclass(frozen=True)
class Forest:
    """ids, depth: [n] int32, parents before children, a first child right behind its parent.

    runs: in order, together all of [0, n).  paths: one [length] int32 a sequence, the place of each of its tokens.
    """

    ids: IntArray
    depth: IntArray
    runs: tuple[Run, ...]
    paths: tuple[IntArray, ...]


def order(sequences: Sequence[IntArray]) -> list[int]:
    """An order in which each sequence shares most with the one before it: that of their ids."""
    # Big-endian bytes of numbers that are not negative compare as the numbers do.
    keys = [sequence.astype(">i4").tobytes() for sequence in sequences]
    return sorted(range(len(keys)), key=lambda i: (keys[i], i))


def shared(left: npt.NDArray[Any], right: npt.NDArray[Any]) -> int:
    """Tokens that both begin with and that are laid out once: a multiple of GRAIN, or the whole of one that the other
    continues. left, right: [n, ...] and [m, ...], a token a row, at least one."""
    n = min(len(left), len(right))
    differ = np.flatnonzero((left[:n] != right[:n]).reshape(n, -1).any(axis=1))
    if not len(differ):
        return n
    return int(differ[0]) // GRAIN * GRAIN


def grow(sequences: Sequence[IntArray], common: Sequence[int]) -> Forest:
    """Lay out sequences given in `order`.

    common: how many tokens each one takes over from the one before it (`shared`, or 0 to take over nothing).
    """
    added = [sequence[keep:] for sequence, keep in zip(sequences, common, strict=True)]
    depths = [np.arange(keep, len(sequence)) for sequence, keep in zip(sequences, common, strict=True)]
    ids, depth = np.concatenate(added).astype(np.int32), np.concatenate(depths).astype(np.int32)
    paths: list[IntArray] = []
    cuts = {0, len(ids)}
    at = 0
    for tokens, keep in zip(added, common, strict=True):
        kept = paths[-1][:keep] if paths else np.zeros(0, np.int32)
        if len(tokens) and not (keep and kept[-1] == at - 1):
            cuts |= {at, int(kept[-1]) + 1} if keep else {at}
        paths.append(np.concatenate([kept, np.arange(at, at + len(tokens))]).astype(np.int32))
        at += len(tokens)
    bounds = sorted(cuts)
    return Forest(ids, depth, _runs(depth, bounds), tuple(paths))


def _runs(depth: IntArray, bounds: Sequence[int]) -> tuple[Run, ...]:
    reach: dict[int, int] = {}
    open_: list[tuple[int, int]] = []
    spans = list(zip(bounds[:-1], bounds[1:], strict=True))
    for start, end in spans:
        while open_ and depth[open_[-1][1] - 1] >= depth[start]:
            reach[open_.pop()[0]] = start
        open_.append((start, end))
    for start, _ in open_:
        reach[start] = bounds[-1]
    return tuple(Run(start, end, reach[start]) for start, end in spans)
