"""From the tree of a trial to the token rows that are trained.

Each leaf's path is a segment. A sampled token that several paths share is owned by the first kept leaf in seq
order, so that every sampled token of a kept call is trained exactly once, in the context it was sampled in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from lego.trajectory.arrays import BoolArray, Fate, FloatArray, IntArray, Sampler
from lego.trajectory.tree import Call, CallTree


@dataclass(frozen=True)
class Keep:
    """Which calls are trained. The reasons of exclusion are independent of the sampled tokens themselves."""

    sampler: Sampler = "policy"
    auxiliary: bool = False
    abandoned: bool = False

    def excluded(self, call: Call) -> str | None:
        """Why a call is left out of the loss, or None."""
        if call.sampler != self.sampler:
            return f"sampled by {call.sampler}"
        if call.kind == "auxiliary" and not self.auxiliary:
            return "auxiliary"
        if call.fate is Fate.ABANDONED and not self.abandoned:
            return "abandoned"
        return None


@dataclass(frozen=True)
class Segment:
    """One token row, context and sampled tokens together; the last id is an owned one.

    ids: [n] int32. mask: [n] bool, True on the sampled ids this segment owns. logprobs: [n] float32, nats, 0 where
    the mask is False and where nothing but a script sampled. owners: [n] int32, the seq of the call that sampled an
    owned id, -1 elsewhere. `leaf`: the call whose path this is. `call_ids`: the calls that own tokens here.
    """

    ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    owners: IntArray
    leaf: int
    call_ids: tuple[int, ...]
    policy_versions: tuple[int, ...]

    @property
    def sampled(self) -> int:
        """Number of owned tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True)
class Segmentation:
    """`excluded`: sampled tokens left out, by reason. `dropped`: broken segments, each with its reason."""

    segments: list[Segment]
    excluded: Counter[str] = field(default_factory=Counter)
    dropped: list[str] = field(default_factory=list)
