"""A trial that forked as harnesses do: sub-agents, a compaction, a request sent again, a history cut short."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from lego.objective.advantages import segment_weights
from lego.trainer.batch import TrainSegment
from lego.trajectory.arrays import Fate
from lego.trajectory.segments import segments
from lego.trajectory.tree import CallRow, rebuild

SYSTEM, TASK, RESULT, REPLY, SUMMARY = 400, 120, 90, 40, 150


def forked_trial(vocabulary: int, turns: int = 8, seed: int = 0, trial: int = 1) -> list[TrainSegment]:
    """The segments that the tree of calls is cut into; their log-probs are yet to be scored.

    A main thread of `turns`; two sub-agents with a system prompt of their own; every other turn is asked again from a
    shorter history (a fork with a reply of its own); then a compaction and as many turns from its summary.
    """
    rng = np.random.default_rng(seed)
    rows: list[CallRow] = []
    length: dict[int, int] = {}

    def ids(n: int) -> np.ndarray:
        return rng.integers(0, vocabulary, n).astype(np.int32)

    def ask(parent: int | None, shared: int, added: np.ndarray) -> int:
        seq, reply = len(rows) + 1, ids(REPLY)
        length[seq] = shared + len(added) + REPLY
        rows.append(
            CallRow(seq, parent, shared, added, reply, np.full(REPLY, -1.0, np.float32), "stop", Fate.DELIVERED, "main",
                    "policy", 0)
        )  # fmt: skip
        return seq

    def thread(last: int, n: int, again: bool) -> int:
        for turn in range(n):
            following = ask(last, length[last], ids(RESULT))
            if again and turn % 2:
                ask(last, length[last] - REPLY, ids(30))
            last = following
        return last

    system, helper = ids(SYSTEM), ids(SYSTEM // 2)
    last = thread(ask(None, 0, np.r_[system, ids(TASK)]), turns, True)
    for _ in range(2):
        thread(ask(None, 0, np.r_[helper, ids(TASK)]), 3, False)
    ask(last, length[last], ids(30))  # the harness asks for a summary
    thread(ask(None, 0, np.r_[system, ids(SUMMARY)]), turns, True)
    cut = segments(rebuild(rows))
    weights = segment_weights([segment.sampled for segment in cut.segments])
    return [
        TrainSegment(trial, segment.ids, segment.mask, segment.logprobs, 1.0, weight)
        for segment, weight in zip(cut.segments, weights, strict=True)
    ]


def unique_tokens(given: Sequence[TrainSegment]) -> int:
    """Distinct contexts of a token, up to the last id of each segment that conditions an owned one."""
    seen: set[bytes] = set()
    for segment in given:
        whole = segment.ids[: np.flatnonzero(segment.mask)[-1]].tobytes()
        seen |= {whole[:end] for end in range(4, len(whole) + 1, 4)}
    return len(seen)


def scored(trainer, given: Sequence[TrainSegment]) -> list[TrainSegment]:
    """With the log-probs that an engine with the trainer's weights would have reported."""
    return [
        replace(segment, logprobs=row.astype(np.float32))
        for segment, row in zip(given, trainer.score(given), strict=True)
    ]
