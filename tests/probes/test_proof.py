"""Each thing the proof is there for, broken on purpose: a wrong id, a wrong context, a wrong mask, a wrong weight."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lego.config.schema import TrainSection
from lego.engine.base import FloatArray, PolicyRef
from lego.engine.forced import Forced
from lego.engine.transformers import TransformersEngine
from lego.probes.bench import make_policy
from lego.probes.matrix import Report, must_hold
from lego.probes.proof import Captured, capture
from lego.trainer.batch import TrainSegment
from lego.trainer.step import Trainer
from lego.trajectory.arrays import Fate
from lego.trajectory.segments import Keep, Segmentation, segments
from lego.trajectory.tree import CallRow, rebuild

BOUND = 1e-4


def ids(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int32)


def row(seq: int, parent: int | None, shared: int, added: Sequence[int], reply: Sequence[int], **more: Any) -> dict:
    return {
        "seq": seq, "parent_seq": parent, "shared": shared, "kind": "main", "reason": "", "fate": "delivered",
        "finish": "stop", "added_prompt_ids": ids(*added), "completion_ids": ids(*reply),
        "prompt_tokens": shared + len(added), "drift": {}, **more,
    }  # fmt: skip


class Fake:
    """A trial of three calls (one continues, one forks) and a title, all of a known log-prob."""

    def __init__(self) -> None:
        self.rows = [
            row(1, None, 0, [10, 11, 12], [20, 21, 2]),
            row(2, 1, 6, [13, 14], [22, 2]),
            row(3, 1, 4, [15], [23, 2], drift={"how": "forked", "spliced": 1, "rerendered": 2}),
            row(4, None, 0, [30, 31], [24, 25, 2], kind="auxiliary", drift={"how": "root"}),
            row(5, None, 0, [], [], kind="rejected", reason="context_overflow"),
        ]
        streams = {
            1: ids(10, 11, 12),
            2: ids(10, 11, 12, 20, 21, 2, 13, 14),
            3: ids(10, 11, 12, 20, 15),
            4: ids(30, 31),
        }
        self.given = {
            seq: Forced(streams[seq], self.rows[seq - 1]["completion_ids"], self.logprobs(seq)) for seq in streams
        }

    def logprobs(self, seq: int) -> FloatArray:
        return np.asarray([-at / seq for at in range(1, 1 + len(self.rows[seq - 1]["completion_ids"]))], np.float32)

    def cut(self) -> Segmentation:
        keys = ("seq", "parent_seq", "shared", "added_prompt_ids", "completion_ids", "finish", "kind")
        made = (
            CallRow(
                **{key: r[key] for key in keys}, fate=Fate(r["fate"]), logprobs=None, sampler="script", policy_version=0
            )
            for r in self.rows
            if r["kind"] != "rejected"
        )  # fmt: skip
        return segments(rebuild(made), Keep(sampler="script"))

    def score(self, asked: Sequence[TrainSegment]) -> list[FloatArray]:
        """What the policy would say: known by the segment's owners, which the proof does not look at here."""
        found = []
        for blank, segment in zip(asked, self.cut().segments, strict=True):
            scores = np.zeros(len(blank.ids), np.float32)
            for seq in np.unique(segment.owners[segment.mask]).tolist():
                at = np.flatnonzero(segment.owners == seq)
                scores[at] = self.logprobs(seq)[at - len(self.given[seq].prompt_ids)]
            found.append(scores)
        return found

    def captured(self, cut: Segmentation | None = None) -> Captured:
        return capture(self.rows, cut or self.cut(), self.given, self)


def test_a_sound_trial_is_counted_and_holds() -> None:
    captured = Fake().captured()
    assert must_hold(captured, BOUND) == []
    assert (captured.calls, captured.roots, captured.forks, captured.drifts) == (4, 2, 1, 2)
    assert (captured.sampled, captured.in_loss, captured.excluded) == (10, 7, {"auxiliary": 3})
    assert (captured.retokenised, captured.spliced, captured.rerendered, captured.gap) == (0, 1, 2, 0.0)
    assert (captured.rejected, captured.longest) == ({"context_overflow": 1}, 8)


def test_what_was_captured_can_be_written_as_json() -> None:
    written = json.loads(json.dumps(Report("x", "1", "plain", captured=Fake().captured()).as_json()))
    assert written["captured"]["rejected"] == {"context_overflow": 1}
    assert written["captured"]["finishes"] == {"stop": 4}


def spoil(fake: Fake, what: str) -> Segmentation | None:
    """Break one thing; returns the segments where it is they that are broken."""
    cut = fake.cut()
    first = cut.segments[0]
    if what == "a stored id":
        fake.rows[1]["completion_ids"] = ids(26, 2)
    elif what == "a stored prompt":
        fake.rows[2]["added_prompt_ids"] = ids(16)
    elif what == "a reply cut short":
        fake.rows[1]["completion_ids"] = ids(22)
    elif what == "a call nobody asked for":
        del fake.given[2]
    elif what == "an id under the mask":
        changed = first.ids.copy()
        changed[np.flatnonzero(first.mask)[0]] = 99
        return replace(cut, segments=[replace(first, ids=changed), *cut.segments[1:]])
    elif what == "an id of the context":
        changed = first.ids.copy()
        changed[1] = 99
        return replace(cut, segments=[replace(first, ids=changed), *cut.segments[1:]])
    elif what == "a mask over the prompt":
        mask, owners = first.mask.copy(), first.owners.copy()
        mask[2], owners[2] = True, 1
        return replace(cut, segments=[replace(first, mask=mask, owners=owners), *cut.segments[1:]])
    elif what == "a token left out":
        mask = first.mask.copy()
        mask[np.flatnonzero(mask)[0]] = False
        return replace(cut, segments=[replace(first, mask=mask), *cut.segments[1:]])
    elif what == "an exclusion nobody declared":
        return Segmentation(
            cut.segments[1:], Counter({"auxiliary": 3, "broken": first.sampled}), ["segment of call 2: x"]
        )
    elif what == "another policy":
        fake.score = lambda asked: [np.full(len(s.ids), -1.0, np.float32) for s in asked]  # type: ignore[method-assign]
    elif what == "no number":
        fake.score = lambda asked: [np.full(len(s.ids), np.nan, np.float32) for s in asked]  # type: ignore[method-assign]
    return None


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("a stored id", "call 2: its stored reply is not what the engine said"),
        ("a stored prompt", "call 3: its stored prompt is not the one"),
        ("a reply cut short", "call 2: 1 ids of its reply are missing"),
        ("a call nobody asked for", "call 2: the engine was never asked"),
        ("an id under the mask", "tokens under the mask are not what"),
        ("an id of the context", "tokens under the mask are not what"),
        ("a mask over the prompt", "1 tokens under the mask are not what"),
        ("a token left out", "10 tokens sampled, 6 in the loss"),
        ("an exclusion nobody declared", "left out: 3 auxiliary, 5 broken"),
        ("another policy", "log-probs differ by up to"),
        ("no number", "log-probs differ by up to inf"),
    ],
)
def test_whatever_is_broken_is_found(what: str, said: str) -> None:
    fake = Fake()
    cut = spoil(fake, what)
    if what not in ("another policy", "no number"):  # then what is scored does not matter
        fake.score = lambda asked: [np.zeros(len(s.ids), np.float32) for s in asked]  # type: ignore[method-assign]
    wrong = must_hold(fake.captured(cut), BOUND)
    assert any(said in line for line in wrong), wrong


def test_an_abandoned_reply_may_be_shorter_and_is_left_out() -> None:
    fake = Fake()
    fake.rows[1] |= {"completion_ids": ids(22), "fate": "abandoned", "finish": "abort"}
    captured = fake.captured()
    assert must_hold(captured, BOUND) == []
    assert captured.excluded == {"auxiliary": 3, "abandoned": 1}


def test_a_trial_without_anything_to_train_on_scores_nothing() -> None:
    fake = Fake()
    fake.rows = fake.rows[3:]
    captured = fake.captured()
    assert (captured.in_loss, captured.gap) == (0, 0.0) and must_hold(captured, BOUND) == []


async def test_one_id_far_back_shows_in_the_log_probs(tmp_path: Path) -> None:
    """The bound lies well between what arithmetic costs and what another context costs, for the policy of checks."""
    make_policy(tmp_path / "policy", 4096)
    stream = np.random.default_rng(0).integers(10, 4000, 1500).astype(np.int32)
    mask = np.arange(len(stream)) >= 1400
    engine, trainer = TransformersEngine(threads=1), Trainer(tmp_path / "policy", TrainSection(), threads=1)
    try:
        await engine.load(PolicyRef(0, str(tmp_path / "policy"), ""))
        forced = await engine.score(stream, 1400)
    finally:
        await engine.close()
    other = stream.copy()
    other[100] += 1
    blank = np.zeros(len(stream), np.float32)
    same, moved = trainer.score([TrainSegment(0, s, mask, blank, sampler="script") for s in (stream, other)])
    assert np.abs(same[mask] - forced).max() < BOUND / 5
    assert np.abs(moved[mask] - forced).max() > BOUND * 5
