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
    return Trial(podman, SPEC, built(podman, SPEC), await bash_image(podman, tmp_path), sockets)


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
