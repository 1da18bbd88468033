"""Segments as the trainer takes them, and how they are laid out in micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lego.engine.base import FloatArray, IntArray
from lego.errors import TrainerError
from lego.trainer.forest import Run, grow, order, shared
from lego.trajectory.arrays import ROUNDED_UP

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TrainSegment:
    """One leaf path of one trial.

    ids: [n] int32.  mask: [n] bool, True on the sampled ids this segment owns.  logprobs: [n] float32, nats, the
    engine's for those ids (0 elsewhere, and throughout where `sampler` is "script").
    advantage: of the trial.  weight: n_segment / n_trial (lego.objective.advantages.segment_weights).
    counts: what its trial counts for in the step's mean over trials, > 0 (lego.objective.advantages.trial_scales).
    group: names the group (round, task, harness); for reading only.
    routing: [n, layers, k] int16, the experts that the engine sent each id to, -1 where unknown (lego.trainer.routing).
    """

    trial_id: int
    ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    advantage: float = 0.0
    weight: float = 1.0
    group: str = ""
    sampler: Literal["policy", "script"] = "policy"
    routing: npt.NDArray[np.int16] | None = None
    counts: float = 1.0


Layout = Literal["forest", "packed", "rows"]
"""How segments stand in a batch. forest: in one row, what they begin with in common only once. packed: in one row, each
whole. rows: a row each, right-padded; for models whose attention cannot be told who sees whom."""


@dataclass(frozen=True)
class Batch:
    """What one forward pass runs over, and where in it the owned ids of its segments are predicted.

    ids: [rows, n] int64.  positions: [rows, n] int64 and runs: of the one row's forest; None and empty where every
    segment has a row of its own.
    states: [m] int64, places in ids.flatten() that predict an owned id.  wanted: [m] int64, that id. They are in the
    order in which `mask` is true.
    mask: [segments, width] bool, one True an owned id, from the left.  logprobs: [segments, width] float32, the
    engine's.  advantage, weight: [segments] float32.
    index: position of each segment in the list the batch was packed from.
    routing: [rows x n, layers, k] int16, as the segments'; None where no segment has any.
    real: [rows x n] bool, False on padding; None where there is none.
    """

    ids: Tensor
    positions: Tensor | None
    runs: tuple[Run, ...]
    states: Tensor
    wanted: Tensor
    mask: Tensor
    logprobs: Tensor
    advantage: Tensor
    weight: Tensor
    index: tuple[int, ...] = field(default_factory=tuple)
    routing: Tensor | None = None
    real: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def check(segments: Sequence[TrainSegment], vocabulary: int) -> None:
    """Assert what every segment must satisfy to be scored or trained on; TrainerError names the first at fault."""
    for number, segment in enumerate(segments):
        reason = _broken(segment, vocabulary)
        if reason:
            raise TrainerError(f"segment {number} of trial {segment.trial_id}: {reason}")


def check_weights(segments: Sequence[TrainSegment]) -> None:
    """Assert that no trial pulls harder than another: its segments weigh at most 1 together. Raises TrainerError."""
    totals: dict[int, float] = defaultdict(float)
    for segment in segments:
        totals[segment.trial_id] += segment.weight
    for trial_id, total in totals.items():
        if total > 1.0 + 1e-6:
            raise TrainerError(f"the segments of trial {trial_id} weigh {total:.6f} together; at most 1 is right")


def _broken(segment: TrainSegment, vocabulary: int) -> str:
    n = len(segment.ids)
    if segment.ids.ndim != 1 or segment.mask.shape != (n,) or segment.logprobs.shape != (n,):
        return f"{segment.ids.shape} ids, {segment.mask.shape} mask, {segment.logprobs.shape} log-probs"
    if segment.mask.dtype != np.bool_:
        return f"the mask is {segment.mask.dtype}, not bool"
    if not segment.mask.any():
        return "it owns no sampled token"
    if segment.mask[0]:
        return "its first id cannot have been sampled: nothing stands before it"
    if segment.ids.min() < 0 or segment.ids.max() >= vocabulary:
        return f"an id lies outside the vocabulary of {vocabulary}"
    owned = segment.logprobs[segment.mask]
    if not np.isfinite(owned).all():
        return "a log-prob of a sampled token is not finite"
    if (owned > ROUNDED_UP).any():
        return f"a log-prob is above 0: {float(owned.max())}"
    if segment.sampler == "script" and owned.any():
        return "it was scripted, yet carries log-probs"
    if not (np.isfinite(segment.advantage) and np.isfinite(segment.weight) and segment.weight > 0):
        return f"advantage {segment.advantage}, weight {segment.weight}"
    return ""


def context(segment: TrainSegment) -> IntArray:
    """The ids that a forward pass must see: those before the last owned one. Never empty."""
    return segment.ids[: int(np.flatnonzero(segment.mask)[-1])]


def pack(segments: Sequence[TrainSegment], tokens: int, layout: Layout = "forest") -> list[Batch]:
    """Micro-batches of at most `tokens` tokens to run over, padding included, what is shared counted once.

    A longer segment gets one of its own. Segments that share most stand together, whatever order they are given in.
    """
    contexts = [context(segment) for segment in segments]
    if layout == "rows":
        return [_rows(segments, contexts, chosen) for chosen in _fill_rows(contexts, tokens)]
    ordered = order(contexts)
    batches: list[Batch] = []
    chosen: list[int] = []
    common: list[int] = []
    used = 0
    for i in ordered:
        keep = _shared(segments, contexts, chosen[-1], i) if chosen and layout == "forest" else 0
        if chosen and used + len(contexts[i]) - keep > tokens:
            batches.append(_trees(segments, contexts, chosen, common))
            chosen, common, used, keep = [], [], 0, 0
        chosen.append(i)
        common.append(keep)
        used += len(contexts[i]) - keep
    return [*batches, _trees(segments, contexts, chosen, common)] if chosen else batches


def _shared(segments: Sequence[TrainSegment], contexts: Sequence[IntArray], left: int, right: int) -> int:
    """Tokens of two segments that are computed once: the same ids, sent to the same experts or left to the model."""
    keep = shared(contexts[left], contexts[right])
    one, other = segments[left].routing, segments[right].routing
    if one is None and other is None:
        return keep
    if one is None or other is None:
        return 0
    return min(keep, shared(one[: len(contexts[left])], other[: len(contexts[right])]))


def _trees(
    segments: Sequence[TrainSegment], contexts: Sequence[IntArray], chosen: Sequence[int], common: Sequence[int]
) -> Batch:
    forest = grow([contexts[i] for i in chosen], common)
    ids, positions = (torch.from_numpy(row.astype(np.int64))[None] for row in (forest.ids, forest.depth))
    return _collate(segments, chosen, ids, positions, forest.runs, forest.paths)


def _fill_rows(contexts: Sequence[IntArray], tokens: int) -> list[list[int]]:
    """Which segments go together, the longest first, so that little is padding; as long ones by their ids."""
    packs: list[list[int]] = []
    widest = 0
    for i in sorted(range(len(contexts)), key=lambda i: (-len(contexts[i]), contexts[i].tobytes())):
        if packs and widest * (len(packs[-1]) + 1) <= tokens:
            packs[-1].append(i)
        else:
            packs.append([i])
            widest = len(contexts[i])
    return packs


def _rows(segments: Sequence[TrainSegment], contexts: Sequence[IntArray], chosen: Sequence[int]) -> Batch:
    lengths = torch.tensor([len(contexts[i]) for i in chosen])
    width = int(lengths.max())
    ids = torch.zeros((len(chosen), width), dtype=torch.int64)
    for row, i in enumerate(chosen):
        ids[row, : len(contexts[i])] = torch.from_numpy(contexts[i].astype(np.int64))
    paths = [np.arange(width, dtype=np.int32) + row * width for row in range(len(chosen))]
    real = (torch.arange(width) < lengths[:, None]).flatten()
    return replace(_collate(segments, chosen, ids, None, (), paths), real=None if real.all() else real)


def _collate(
    segments: Sequence[TrainSegment],
    chosen: Sequence[int],
    ids: Tensor,
    positions: Tensor | None,
    runs: tuple[Run, ...],
    paths: Sequence[IntArray],
) -> Batch:
    """paths: where in ids.flatten() each segment's tokens stand."""
    picked = [segments[i] for i in chosen]
    owned = [np.flatnonzero(segment.mask) for segment in picked]
    width = max(len(places) for places in owned)
    mask = torch.zeros((len(picked), width), dtype=torch.bool)
    logprobs = torch.zeros((len(picked), width), dtype=torch.float32)
    for row, (segment, places) in enumerate(zip(picked, owned, strict=True)):
        mask[row, : len(places)] = True
        logprobs[row, : len(places)] = torch.from_numpy(segment.logprobs[places].astype(np.float32))
    states = [path[places - 1] for path, places in zip(paths, owned, strict=True)]
    wanted = [segment.ids[places] for segment, places in zip(picked, owned, strict=True)]
    return Batch(
        ids=ids,
        positions=positions,
        runs=runs,
        states=torch.from_numpy(np.concatenate(states).astype(np.int64)),
        wanted=torch.from_numpy(np.concatenate(wanted).astype(np.int64)),
        mask=mask,
        logprobs=logprobs,
        advantage=torch.tensor([segment.advantage for segment in picked], dtype=torch.float32),
        weight=torch.tensor([segment.weight for segment in picked], dtype=torch.float32),
        index=tuple(chosen),
        routing=_routing(picked, paths, ids.numel()),
    )


def _routing(segments: Sequence[TrainSegment], paths: Sequence[IntArray], tokens: int) -> Tensor | None:
    shape = next((segment.routing.shape[1:] for segment in segments if segment.routing is not None), None)
    if shape is None:
        return None
    whole = np.full((tokens, *shape), -1, dtype=np.int16)
    for segment, path in zip(segments, paths, strict=True):
        if segment.routing is not None:
            length = len(context(segment))
            whole[path[:length]] = segment.routing[:length]
    return torch.from_numpy(whole)


def coverage(segments: Sequence[TrainSegment]) -> float:
    """Share of the owned ids whose experts were recorded, at the row that produced them: one position before."""
    known = sum(
        int((segment.routing[np.flatnonzero(segment.mask) - 1] >= 0).all(axis=(1, 2)).sum())
        for segment in segments
        if segment.routing is not None
    )
    return known / sum(int(segment.mask.sum()) for segment in segments)


def split_trials(segments: Sequence[TrainSegment], parts: int, seed: int) -> list[list[TrainSegment]]:
    """At most `parts` mini-batches of whole trials, near equal in trials, in an order that `seed` decides."""
    trials = sorted({segment.trial_id for segment in segments})
    shuffled = np.random.default_rng(seed).permutation(len(trials)) if parts > 1 else np.arange(len(trials))
    place = {trials[int(which)]: position for position, which in enumerate(shuffled)}
    parts = min(parts, len(trials))
    batches: list[list[TrainSegment]] = [[] for _ in range(parts)]
    for segment in segments:
        batches[place[segment.trial_id] * parts // len(trials)].append(segment)
    return batches
