"""The proof of one forced trial: what is stored, cut and masked is what the engine was given and said, and the
trainer's own forward pass finds the same log-probs in it.

Nothing here trusts the tree: prompts are put together again from the stored rows, and every id under the mask is held
against the engine's own record of its request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from lego.engine.base import FloatArray, IntArray
from lego.engine.forced import Forced
from lego.rundb.store import Row
from lego.trainer.batch import TrainSegment
from lego.trajectory.segments import Segment, Segmentation

DECLARED = ("auxiliary", "abandoned")
"""Reasons for which a sampled token may be left out of the loss."""


class Scorer(Protocol):
    """What the trainer does with segments: one [n] float32 each, nats, 0 where the mask is False."""

    def score(self, segments: Sequence[TrainSegment]) -> list[FloatArray]: ...


@dataclass(frozen=True)
class Captured:
    """What a trial's calls came to. Counts of calls: `calls` sampled something, `rejected` did not; `roots` share
    nothing with an earlier call, `forks` a part of one; `drifts` are the calls that do not continue one whole, the
    first excepted. Counts of tokens: `sampled` = `in_loss` + what `excluded` names, if all is well; `retokenised` are
    under the mask but not what the engine sampled in that very context. Counts of replies in rendered histories:
    `spliced` by their raw ids, `rerendered` from text. `longest`: tokens of the longest prompt. `gap`: the largest
    |log p| difference between the engine's forcing and the trainer's recomputation, nats.
    """

    calls: int
    rejected: Mapping[str, int]
    roots: int
    forks: int
    drifts: int
    sampled: int
    in_loss: int
    excluded: Mapping[str, int]
    retokenised: int
    spliced: int
    rerendered: int
    superseded: int
    longest: int
    finishes: Mapping[str, int]
    gap: float
    broken: tuple[str, ...] = field(default=())
    """What does not hold, one line each."""


def capture(rows: Sequence[Row], cut: Segmentation, given: Mapping[int, Forced], scorer: Scorer) -> Captured:
    """Hold a trial's stored calls and segments against the engine's record.

    rows: as lego.rundb.calls gives them, rejected requests included. cut: the segments the trainer would get.
    given: seq -> what the engine was asked and said.
    """
    recorded = [row for row in rows if row["kind"] != "rejected"]
    lengths = {row["seq"]: row["prompt_tokens"] + len(row["completion_ids"]) for row in recorded}
    broken = [*_misrecorded(recorded, given), *cut.dropped]
    retokenised, wanted = 0, []
    for segment in cut.segments:
        wrong, logprobs = _held_against(segment, given)
        retokenised += wrong
        wanted.append(logprobs)
    return Captured(
        calls=len(recorded),
        rejected=dict(Counter(row["reason"] for row in rows if row["kind"] == "rejected")),
        roots=sum(row["parent_seq"] is None for row in recorded),
        forks=sum(_is_fork(row, lengths) for row in recorded),
        drifts=sum("how" in row["drift"] for row in recorded),
        sampled=sum(len(row["completion_ids"]) for row in recorded),
        in_loss=sum(segment.sampled for segment in cut.segments),
        excluded=dict(cut.excluded),
        retokenised=retokenised,
        spliced=sum(row["drift"].get("spliced", 0) for row in recorded),
        rerendered=sum(row["drift"].get("rerendered", 0) for row in recorded),
        superseded=sum(row["fate"] == "superseded" for row in recorded),
        longest=max((row["prompt_tokens"] for row in recorded), default=0),
        finishes=dict(Counter(row["finish"] for row in recorded)),
        gap=_gap(cut.segments, wanted, scorer),
        broken=tuple(broken),
    )


def _is_fork(row: Row, lengths: Mapping[int, int]) -> bool:
    return row["parent_seq"] is not None and row["shared"] < lengths[row["parent_seq"]]


def _misrecorded(recorded: Sequence[Row], given: Mapping[int, Forced]) -> list[str]:
    """The calls whose stored ids are not those that the engine was given, or gave."""
    streams: dict[int | None, IntArray] = {None: np.empty(0, np.int32)}
    wrong = []
    for row in recorded:
        seq, reply = row["seq"], row["completion_ids"]
        prompt = np.concatenate([streams[row["parent_seq"]][: row["shared"]], row["added_prompt_ids"]])
        streams[seq] = np.concatenate([prompt, reply])
        forced = given.get(seq)
        if forced is None:
            wrong.append(f"call {seq}: the engine was never asked for it")
        elif not np.array_equal(prompt, forced.prompt_ids):
            wrong.append(f"call {seq}: its stored prompt is not the one that the engine was given")
        elif not np.array_equal(reply, forced.ids[: len(reply)]):
            wrong.append(f"call {seq}: its stored reply is not what the engine said")
        elif len(reply) < len(forced.ids) and row["fate"] != "abandoned":
            wrong.append(f"call {seq}: {len(forced.ids) - len(reply)} ids of its reply are missing")
    return wrong


def _held_against(segment: Segment, given: Mapping[int, Forced]) -> tuple[int, FloatArray]:
    """How many ids under the mask are not what the engine said in that context; and what it gave the others, [n]
    float32, nats, nan for the retokenised ones and 0 outside the mask."""
    logprobs = np.zeros(len(segment.ids), dtype=np.float32)
    wrong = 0
    for seq in np.unique(segment.owners[segment.mask]).tolist():
        at = np.flatnonzero(segment.mask & (segment.owners == seq))
        right = np.zeros(len(at), dtype=np.bool_)
        forced = given.get(seq)
        if forced is not None:
            stream = np.concatenate([forced.prompt_ids, forced.ids])
            n = min(len(stream), len(segment.ids))
            differ = np.flatnonzero(stream[:n] != segment.ids[:n])
            same = int(differ[0]) if len(differ) else n
            right = (at >= len(forced.prompt_ids)) & (at < same)
            logprobs[at[right]] = forced.logprobs[at[right] - len(forced.prompt_ids)]
        logprobs[at[~right]] = np.nan
        wrong += int((~right).sum())
    return wrong, logprobs


def _gap(cut: Sequence[Segment], wanted: Sequence[FloatArray], scorer: Scorer) -> float:
    """The largest difference under the masks, over tokens that are not retokenised; 0 where there are none."""
    blank = [
        TrainSegment(0, segment.ids, segment.mask, np.zeros(len(segment.ids), np.float32), sampler="script")
        for segment in cut
    ]
    largest = 0.0
    for segment, found, want in zip(cut, scorer.score(blank) if blank else [], wanted, strict=True):
        difference = np.abs(found - want)[segment.mask & ~np.isnan(want)]
        if len(difference):
            largest = max(largest, float(difference.max()) if np.isfinite(difference).all() else np.inf)
    return largest
