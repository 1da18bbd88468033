"""Segments as the trainer takes them, and how they are packed into micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lego.engine.base import FloatArray, IntArray
from lego.errors import TrainerError

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TrainSegment:
    """One leaf path of one trial.

    ids: [n] int32.  mask: [n] bool, True on the sampled ids this segment owns.  logprobs: [n] float32, nats, the
    engine's for those ids (0 elsewhere, and throughout where `sampler` is "script").
    advantage: of the trial.  weight: n_segment / n_trial (lego.objective.advantages.segment_weights).
    group: names the group (round, task, harness); for reading only.
    """

    trial_id: int
    ids: IntArray
    mask: BoolArray
    logprobs: FloatArray
    advantage: float = 0.0
    weight: float = 1.0
    group: str = ""
    sampler: Literal["policy", "script"] = "policy"


@dataclass(frozen=True)
class Batch:
    """Segments right-padded to one length and cut after the last owned id of the longest.

    ids: [segments, tokens] int64.  mask: bool.  logprobs: float32.  advantage, weight: [segments] float32.
    index: position of each row in the list the batch was packed from.
    """

    ids: Tensor
    mask: Tensor
    logprobs: Tensor
    advantage: Tensor
    weight: Tensor
    index: tuple[int, ...] = field(default_factory=tuple)

    def to(self, device: torch.device) -> Batch:
        return replace(
            self,
            ids=self.ids.to(device),
            mask=self.mask.to(device),
            logprobs=self.logprobs.to(device),
            advantage=self.advantage.to(device),
            weight=self.weight.to(device),
        )


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
    if (owned > 1e-4).any():
        return f"a log-prob is above 0: {float(owned.max())}"
    if segment.sampler == "script" and owned.any():
        return "it was scripted, yet carries log-probs"
    if not (np.isfinite(segment.advantage) and np.isfinite(segment.weight) and segment.weight > 0):
        return f"advantage {segment.advantage}, weight {segment.weight}"
    return ""


def length(segment: TrainSegment) -> int:
    """Ids up to and including the last owned one; what follows conditions nothing that is trained."""
    return int(np.flatnonzero(segment.mask)[-1]) + 1


def pack(segments: Sequence[TrainSegment], tokens: int) -> list[Batch]:
    """Micro-batches of at most `tokens` padded tokens, longest first; a longer segment gets one of its own."""
    order = sorted(range(len(segments)), key=lambda i: (-length(segments[i]), i))
    packs: list[list[int]] = []
    widest = 0
    for i in order:
        if packs and widest * (len(packs[-1]) + 1) <= tokens:
            packs[-1].append(i)
        else:
            packs.append([i])
            widest = length(segments[i])
    return [_collate(segments, indices) for indices in packs]


def _collate(segments: Sequence[TrainSegment], indices: Sequence[int]) -> Batch:
    chosen = [segments[i] for i in indices]
    shape = (len(chosen), max(length(segment) for segment in chosen))
    ids = torch.zeros(shape, dtype=torch.int64)
    mask = torch.zeros(shape, dtype=torch.bool)
    logprobs = torch.zeros(shape, dtype=torch.float32)
    for row, segment in enumerate(chosen):
        n = length(segment)
        ids[row, :n] = torch.from_numpy(segment.ids[:n].astype(np.int64))
        mask[row, :n] = torch.from_numpy(segment.mask[:n].astype(np.bool_))
        logprobs[row, :n] = torch.from_numpy(np.where(segment.mask[:n], segment.logprobs[:n], 0).astype(np.float32))
    return Batch(
        ids=ids,
        mask=mask,
        logprobs=logprobs,
        advantage=torch.tensor([segment.advantage for segment in chosen], dtype=torch.float32),
        weight=torch.tensor([segment.weight for segment in chosen], dtype=torch.float32),
        index=tuple(indices),
    )


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
