"""Qwen Code, unmodified and sealed in, against the real proxy: what is trained is what was sampled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.harness.spec import load_spec
from lego.images.keys import base_tag
from lego.proxy.session import Caps
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.runners import AFTER, FILE, Trial, built
from tests.proxy.families import END, all_trained, continued, said, sampled
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

SPEC = load_spec("qwen-code")


def shell(*commands: str, thinking: str = "") -> Turn:
    """A turn that thinks, and calls the shell for each command at once."""
    pieces = ["<think>", f"\n{thinking}\n", "</think>", "\n\n"] if thinking else []
    for command in commands:
        call = {"name": "run_shell_command", "arguments": {"description": "d", "command": command}}
        pieces += ["<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"]
    return sampled(*pieces, END)


FIX = shell("sed -i 's/mat/cat/' animal.txt", thinking="A cat.")


@pytest.fixture
async def trial(podman: Podman, sockets: Path, tmp_path: Path) -> Trial:
    return Trial(podman, SPEC, await built(podman, SPEC, tmp_path), base_tag(ImagesSection()), sockets)


async def test_thinking_parallel_calls_and_broken_ones_are_one_unbroken_segment(trial: Trial) -> None:
    engine = PlayEngine(
        shell("cat animal.txt", "sleep 1; ls", "echo three", thinking="Which animal?"),
        sampled("<tool_call>", '{"name": "run_shell_command", "arguments": {"command": "ls', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "shout", "arguments": {"a": 1}}', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "grep_search", "arguments": {"pattern": "m[a]t"}}', "</tool_call>", END),
        FIX,
        said("It is a cat now.", "Done, I think."),
    )
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
        assert all_trained(session, trial.rows) and len(segments(session.tree).segments) == 1
    assert [(row.kind, row.status, row.drift) for row in trial.rows] == [("main", 200, {})] * 6
    assert all(continued(engine, trial.rows, number) for number in range(2, 7))
    assert "Found 1 match" in str(trial.rows[4].messages["new"]), "its search has its ripgrep"


async def test_commands_keep_the_home_of_the_task(trial: Trial) -> None:
    async with trial.session(PlayEngine(shell("echo home=$HOME; env"), said("Done."))) as session:
        ran = await trial.run(session)
    assert ran.code == 0, ran.output
    seen = str(trial.rows[1].messages["new"])
    assert "home=/app" in seen and "LD_" not in seen


async def test_an_engine_fault_is_tried_again_and_what_was_cut_is_not_trained(trial: Trial) -> None:
    """Before the stream; where it is cut, Qwen Code ends with exit code 0."""
    look = shell("cat animal.txt", thinking="Which animal?")
    cut = Turn("", pieces=9, raw=look.raw, gated=0, fail="out of memory")
    engine = PlayEngine(cut, look, said("It is a mat."))
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    assert ran.code == 0, ran.output
    assert [row.fate for row in trial.rows] == ["abandoned", "delivered", "delivered"]
    assert sum(parts.excluded.values()) == len(trial.rows[0].completion_ids) and not parts.dropped
    assert continued(engine, trial.rows, 3)


async def test_a_full_context_is_compacted_and_the_trial_goes_on(trial: Trial) -> None:
    looks = [shell(f"cat animal.txt; seq {n} {n + 600}", thinking="Which animal?") for n in range(1000, 8000, 1000)]
    summary = said("animal.txt has a mat.", "I sum up.")
    engine = PlayEngine(*looks, summary, FIX, said("Done."))
    async with trial.session(engine, Caps(40, 1000, 80_000)) as session:
        ran = await trial.run(session)
        parts = segments(session.tree)
    calls = [row for row in trial.rows if row.kind != "rejected"]
    assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
    assert not parts.dropped and not parts.excluded
    assert sum(s.sampled for s in parts.segments) == sum(len(row.completion_ids) for row in calls)
    summed, resumed, last = calls[-3:]
    assert summed.drift["how"] == resumed.drift["how"] == "forked" and last.drift == {}
