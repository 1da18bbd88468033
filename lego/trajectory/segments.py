"""From the tree of a trial to the token rows that are trained.

Each leaf's path is a segment. A sampled token that several paths share is owned by the first kept leaf in seq
order, so that every sampled token of a kept call is trained exactly once, in the context it was sampled in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lego.errors import TrajectoryError
from lego.trajectory.arrays import ROUNDED_UP, BoolArray, Fate, FloatArray, IntArray, Sampler
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
    routing: [n, layers, k] int16, the experts that each id went to, -1 where that is not known; None where nothing is.
    """

    ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    owners: IntArray
    leaf: int
    call_ids: tuple[int, ...]
    policy_versions: tuple[int, ...]
    routing: npt.NDArray[np.int16] | None = None

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


def segments(tree: CallTree, keep: Keep | None = None) -> Segmentation:
    """The trainable rows of one trial.

    Invariants asserted on each segment, all that the trainer asks of it but the vocabulary: its ids are its path's ids;
    every owned id has an id before it and one finite log-prob <= 0 (unless a script sampled it); the mask is True on
    owned sampled ids alone. A segment that breaks one is dropped
    with its reason and the rest lives: what was sound in it goes to the next leaf that shares it.
    """
    keep = keep or Keep()
    result = Segmentation([])
    kept: dict[int, Call] = {}
    for call in tree:
        reason = keep.excluded(call)
        if reason is None:
            kept[call.id] = call
        elif len(call.completion_ids):
            result.excluded[reason] += len(call.completion_ids)
    owned_to = dict.fromkeys(kept, 0)
    for leaf in _leaves(tree, kept):
        own: list[tuple[Call, int, int]] = []
        broken: list[str] = []
        for call, count in tree.path(leaf):
            if call.id not in kept or count <= owned_to[call.id]:
                continue
            fault = _fault(call)
            if fault:
                broken.append(f"call {call.id}: {fault}")
                result.excluded["broken"] += count - owned_to[call.id]
                owned_to[call.id] = count
            else:
                own.append((call, owned_to[call.id], count))
        if broken:
            result.dropped.append(f"segment of call {leaf.id}: " + "; ".join(broken))
        elif own:
            result.segments.append(_segment(tree, leaf, own))
            owned_to.update({call.id: count for call, _, count in own})
    lost = sum(len(call.completion_ids) - owned_to[call.id] for call in kept.values())
    if lost:
        result.excluded["in dropped segments"] += lost
    return result


def _leaves(tree: CallTree, kept: dict[int, Call]) -> list[Call]:
    """The kept calls whose whole stream is not part of another kept call's, in seq order."""
    covered: set[int] = set()
    leaves: list[Call] = []
    for call in reversed(list(tree)):
        if call.id not in kept or call.id in covered:
            continue
        leaves.append(call)
        limit = call.shared
        node = call
        while node.parent_id is not None:
            node = tree[node.parent_id]
            if node.length <= limit:
                covered.add(node.id)
            limit = min(limit, node.shared)
    return leaves[::-1]


def _fault(call: Call) -> str | None:
    if not call.prompt_length:
        return "nothing stands before its first sampled id"
    if call.logprobs is None:
        return None if call.sampler == "script" else "no log-probs for ids that a policy sampled"
    if len(call.logprobs) != len(call.completion_ids):
        return f"{len(call.completion_ids)} sampled ids but {len(call.logprobs)} log-probs"
    if not np.isfinite(call.logprobs).all():
        return "a log-prob is not finite"
    if (call.logprobs > ROUNDED_UP).any():
        return "a log-prob is above zero"
    return None


def _segment(tree: CallTree, leaf: Call, own: list[tuple[Call, int, int]]) -> Segment:
    end = max(call.prompt_length + count for call, _, count in own)
    ids = tree.full_ids(leaf)[:end]
    logprobs = np.zeros(end, dtype=np.float32)
    owners = np.full(end, -1, dtype=np.int32)
    for call, begin, count in own:
        span = slice(call.prompt_length + begin, call.prompt_length + count)
        if not np.array_equal(ids[span], call.completion_ids[begin:count]) or (owners[span] != -1).any():
            raise TrajectoryError(f"call {call.id}: its sampled ids are not where its path says")
        owners[span] = call.id
        if call.logprobs is not None:
            logprobs[span] = call.logprobs[begin:count]
    return Segment(
        ids=ids,
        mask=owners >= 0,
        logprobs=logprobs,
        owners=owners,
        leaf=leaf.id,
        call_ids=tuple(call.id for call, _, _ in own),
        policy_versions=tuple(sorted({call.policy_version for call, _, _ in own})),
    )
