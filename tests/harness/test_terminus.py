"""Terminus-2, unmodified and sealed in, against the real proxy: no tools, all of its history recognised by its text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lego.harness.spec import load_spec
from lego.proxy.session import Caps
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.runners import AFTER, FILE, Trial, bash_image, built
from tests.proxy.families import all_trained, continued, last, said
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

SPEC = load_spec("terminus-2")
FIX = "sed -i 's/mat/cat/' animal.txt\n"


def keys(*commands: str, thinking: str = "", complete: bool = False) -> Turn:
    """A turn that types each command, waiting half a second after it."""
    typed = [{"keystrokes": command, "duration": 0.5} for command in commands]
    reply = {"analysis": "é", "plan": "p", "commands": typed} | ({"task_complete": True} if complete else {})
    return said(json.dumps(reply, ensure_ascii=False, indent=1), thinking or None)


DONE = keys(complete=True)


@pytest.fixture
async def trial(podman: Podman, sockets: Path, tmp_path: Path) -> Trial:
    return Trial(podman, SPEC, await built(podman, SPEC, tmp_path), await bash_image(podman, tmp_path), sockets)


async def test_thinking_and_broken_replies_are_one_unbroken_segment(trial: Trial) -> None:
    engine = PlayEngine(
        keys("cat animal.txt\n", "printf '%s\\n' \"$PATH\" \"${LOCPATH-none}\" \"${LEGO_TOKEN-none}\"; which tmux\n",
             thinking="Which animal?"),
        said("I would rather talk.", "Hm."),
        said('Sure: {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n"}]} there.'),
        keys(FIX, thinking="A cat."),
        DONE,
        DONE,
    )  # fmt: skip
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
        assert all_trained(session, trial.rows) and len(segments(session.tree).segments) == 1
    assert [(row.kind, row.status, row.drift) for row in trial.rows] == [("main", 200, {})] * 6
    assert all(continued(engine, trial.rows, number) for number in range(2, 7))
    screen = trial.rows[1].messages["new"][-1]["content"]
    assert "a mat" in screen and screen.count("none") >= 3, screen
    assert "harness" not in screen and "sk-trial" not in screen, screen


async def test_a_full_context_is_handed_over_and_the_trial_goes_on(trial: Trial) -> None:
    looks = [
        keys(f"clear; cat animal.txt; seq {n} {n + 300}\n", thinking="Which animal?") for n in range(1000, 7000, 1000)
    ]
    engine = PlayEngine(
        *looks, said("It is a mat.", "I sum up."), said("Which mat?", "I ask."), said("That one.", "I answer."),
        keys(FIX, thinking="A cat."), DONE, DONE,
    )  # fmt: skip
    async with trial.session(engine, Caps(40, 1000, 12_000)) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
    calls = [row for row in trial.rows if row.kind != "rejected"]
    assert not parts.dropped and not parts.excluded
    assert sum(s.sampled for s in parts.segments) == sum(len(row.completion_ids) for row in calls)
    assert [row.reason for row in trial.rows if row.kind == "rejected"] == ["context_overflow"]
    summary, questions, answers, resumed = calls[6:10]
    assert [last([call])["content"] for call in (summary, questions, answers)] == [
        "It is a mat.", "Which mat?", "That one.",
    ]  # fmt: skip
    assert summary.drift == answers.drift == {}, "both go on from what was sampled"
    assert questions.drift["how"] == resumed.drift["how"] == "forked"
    assert "That one." in resumed.messages["new"][-1]["content"]


async def test_what_fails_is_asked_again_and_a_cut_reply_stays(trial: Trial) -> None:
    look = keys("cat animal.txt\n", thinking="Which animal?")
    engine = PlayEngine(
        Turn("", raw=look.raw, fail="out of memory"), look, said("I think on. " * 200), said(""), keys(FIX), DONE, DONE
    )
    async with trial.session(engine, Caps(40, 400, 400_000)) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
    assert [row.finish for row in trial.rows if row.status == 200] == ["stop", "length", *["stop"] * 4]
    assert not parts.dropped and sum(s.sampled for s in parts.segments) + sum(parts.excluded.values()) == sum(
        len(row.completion_ids) for row in trial.rows
    )
    assert len(parts.segments) == 1


async def test_a_turn_cap_ends_the_run(trial: Trial) -> None:
    engine = PlayEngine(*[keys(f"ls {n}\n") for n in range(4)])
    async with trial.session(engine) as session:
        ran = await trial.run(session, max_turns=2)
    assert (ran.code, len(trial.rows)) == (3, 2), ran.output
