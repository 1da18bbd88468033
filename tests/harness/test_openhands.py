"""OpenHands' SDK, unmodified and sealed in, against the real proxy: what is trained is what was sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lego.harness.spec import load_spec
from lego.proxy.session import Caps
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.runners import AFTER, FILE, Trial, bash_image, built
from tests.proxy.families import END, all_trained, continued, said, sampled
from tests.proxy.families import last as last_reply
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

SPEC = load_spec("openhands")


def terminal(*commands: str, thinking: str = "") -> Turn:
    """A turn that thinks, and calls the terminal for each command at once."""
    pieces = ["<think>", f"\n{thinking}\n", "</think>", "\n\n"] if thinking else []
    for command in commands:
        call = {"name": "terminal", "arguments": {"command": command}}
        pieces += ["<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"]
    return sampled(*pieces, END)


FIX = terminal("sed -i 's/mat/cat/' animal.txt", thinking="A cat.")


@pytest.fixture
async def trial(podman: Podman, sockets: Path, tmp_path: Path) -> Trial:
    return Trial(podman, SPEC, await built(podman, SPEC, tmp_path), await bash_image(podman, tmp_path), sockets)


async def test_thinking_parallel_calls_and_broken_ones_are_one_unbroken_segment(trial: Trial) -> None:
    engine = PlayEngine(
        terminal("cat animal.txt", "sleep 1; ls", thinking="Which animal?"),
        sampled("<tool_call>", '{"name": "terminal", "arguments": {"command": "ls', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "shout", "arguments": {"a": 1}}', "</tool_call>", END),
        FIX,
        said("It is a cat now.", "Done, I think."),
    )
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
        assert all_trained(session, trial.rows) and len(segments(session.tree).segments) == 1
    assert [(row.kind, row.status, row.drift) for row in trial.rows] == [("main", 200, {})] * 5
    assert all(continued(engine, trial.rows, number) for number in range(2, 6))


async def test_commands_see_the_environment_of_the_task(trial: Trial) -> None:
    look = terminal('echo "path=$PATH loc=${LOCPATH-none} token=${LEGO_TOKEN-none} ctype=${LC_CTYPE-none}"; tmux -V')
    async with trial.session(PlayEngine(look, said("Done."))) as session:
        ran = await trial.run(session)
    assert ran.code == 0, ran.output
    seen = trial.rows[1].messages["new"][-1]["content"]
    assert "loc=none token=none ctype=none" in seen and "not found" in seen, seen
    assert "harness" not in seen.replace("PATH", ""), seen


async def test_a_full_context_is_condensed_and_the_trial_goes_on(trial: Trial) -> None:
    looks = [terminal(f"cat animal.txt; seq {n} {n + 600}", thinking="Which animal?") for n in range(1000, 7000, 1000)]
    summary = said("animal.txt has a mat.", "I sum up.")
    engine = PlayEngine(*looks, summary, FIX, said("Done."))
    async with trial.session(engine, Caps(40, 1000, 45_000)) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
    calls = [row for row in trial.rows if row.kind != "rejected"]
    assert not parts.dropped and not parts.excluded
    assert sum(s.sampled for s in parts.segments) == sum(len(row.completion_ids) for row in calls)
    assert [row.reason for row in trial.rows if row.kind == "rejected"] == ["context_overflow"]
    condensed, resumed, last = calls[-3:]
    assert condensed.kind == resumed.kind == "main" and last_reply([condensed])["content"] == "animal.txt has a mat."
    assert resumed.drift["how"] == "forked" and resumed.drift["spliced"] == 2, "the rounds it kept are our own ids"
    assert "a mat" in str(resumed.messages["new"]) and last.drift == {}


async def test_what_fails_is_asked_again_and_only_what_was_sampled_is_trained(trial: Trial) -> None:
    look = terminal("cat animal.txt", thinking="Which animal?")
    engine = PlayEngine(
        Turn("", raw=look.raw, fail="out of memory"),
        look,
        said(""),
        sampled("<tool_call>", '{"name": "terminal", "arguments": {"command": "' + "x" * 900),
        FIX,
        said("It is a cat. " * 200),
    )
    async with trial.session(engine, Caps(40, 400, 400_000)) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
    assert [row.finish for row in trial.rows if row.status == 200] == ["stop", "stop", "length", "stop", "length"]
    assert not parts.dropped and sum(s.sampled for s in parts.segments) + sum(parts.excluded.values()) == sum(
        len(row.completion_ids) for row in trial.rows
    )
    assert len(parts.segments) == 1


async def test_a_turn_cap_ends_the_run(trial: Trial) -> None:
    engine = PlayEngine(*[terminal(f"ls {n}") for n in range(4)])
    async with trial.session(engine) as session:
        ran = await trial.run(session, max_turns=2)
    assert (ran.code, len(trial.rows)) == (3, 2), ran.output
