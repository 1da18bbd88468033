"""The harnesses with large images, unmodified and sealed in, against the real proxy: what was sampled is trained.

What goes wrong on the way is in test_fault_table.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.harness.spec import HarnessSpec, load_spec
from lego.images.keys import base_tag
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.runners import AFTER, FILE, Trial, bash_image, built
from tests.proxy.families import END, all_trained, continued, said, sampled
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

Says = Callable[..., Turn]


def calls(tool: str) -> Says:
    """Turns of a harness with tools: one thinks, and calls the shell for each command at once."""

    def says(*commands: str, thinking: str = "") -> Turn:
        pieces = ["<think>", f"\n{thinking}\n", "</think>", "\n\n"] if thinking else []
        for command in commands:
            call = {"name": tool, "arguments": {"command": command}}
            pieces += ["<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"]
        return sampled(*pieces, END)

    return says


def keys(*commands: str, thinking: str = "", complete: bool = False) -> Turn:
    """A turn of Terminus-2, which types each command and waits half a second after it."""
    typed = [{"keystrokes": f"{command}\n", "duration": 0.5} for command in commands]
    reply = {"analysis": "é", "plan": "p", "commands": typed} | ({"task_complete": True} if complete else {})
    return said(json.dumps(reply, ensure_ascii=False, indent=1), thinking or None)


def spoiled(tool: str) -> list[Turn]:
    """A call whose JSON never ends, and one of a tool that is not there."""
    return [
        sampled("<tool_call>", f'{{"name": "{tool}", "arguments": {{"command": "ls', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "shout", "arguments": {"a": 1}}', "</tool_call>", END),
    ]


def searches(tool: str) -> Turn:
    return sampled("<tool_call>", f'{{"name": "{tool}", "arguments": {{"pattern": "m[a]t"}}}}', "</tool_call>", END)


DONE = [said("It is a cat now.", "Done, I think.")]
SURE = [keys(complete=True), keys(complete=True)]
WORDS = [
    said("I would rather talk.", "Hm."),
    said('Sure: {"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n"}]} there.'),
]


@dataclass(frozen=True)
class Row:
    """One harness. `broken`: turns that no harness can act upon as they are, and a use of its own tools; `answered`:
    what the call after them then reads. `looks`: a command that shows the environment of commands; `shows`, `hides`:
    what its output has and has not. `out_of_turns`: its exit code then, None where the proxy alone counts."""

    says: Says
    broken: Sequence[Turn]
    done: Sequence[Turn]
    answered: str
    looks: str
    shows: Sequence[str]
    hides: Sequence[str]
    out_of_turns: int | None
    needs_bash: bool


HOME = ("echo home=$HOME; env", ("home=/app",))
TERMINAL = (
    'echo "loc=${LOCPATH-none} token=${LEGO_TOKEN-none} ctype=${LC_CTYPE-none} $PATH."; which tmux || echo "no" tmux',
    ("loc=none token=none ctype=none", "no tmux"),
    ("sk-trial", "/opt/harness", "tmux-of-the-harness"),
)
ROWS = {
    "opencode": Row(
        calls("bash"), [*spoiled("bash"), searches("grep")], DONE, "Found 1 matches", *HOME, ("sk-trial", "LD_"), None,
        needs_bash=False,
    ),
    "openhands": Row(calls("terminal"), spoiled("terminal"), DONE, "shout", *TERMINAL, 3, needs_bash=True),
    "qwen-code": Row(
        calls("run_shell_command"), [*spoiled("run_shell_command"), searches("grep_search")], DONE, "Found 1 match",
        *HOME, ("LD_",), 53, needs_bash=False,
    ),
    "terminus-2": Row(keys, WORDS, SURE, "", *TERMINAL, 3, needs_bash=True),
}  # fmt: skip
FIX = "sed -i 's/mat/cat/' animal.txt"


@pytest.fixture(params=ROWS)
async def trial(request: pytest.FixtureRequest, podman: Podman, sockets: Path, tmp_path: Path) -> Trial:
    return await _trial(load_spec(request.param), podman, sockets, tmp_path)


async def _trial(spec: HarnessSpec, podman: Podman, sockets: Path, folder: Path) -> Trial:
    runtime = await built(podman, spec, folder)
    image = await bash_image(podman, folder) if ROWS[spec.name].needs_bash else base_tag(ImagesSection())
    return Trial(podman, spec, runtime, image, sockets)


async def test_thinking_parallel_calls_and_broken_ones_are_one_unbroken_segment(trial: Trial) -> None:
    row = ROWS[trial.spec.name]
    engine = PlayEngine(
        row.says("cat animal.txt", "sleep 1; ls", "echo three", thinking="Which animal?"),
        *row.broken,
        row.says(FIX, thinking="A cat."),
        *row.done,
    )
    turns = len(engine.turns)
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
        assert all_trained(session, trial.rows) and len(segments(session.tree).segments) == 1
    assert [(call.kind, call.status, call.drift) for call in trial.rows] == [("main", 200, {})] * turns
    assert all(continued(engine, trial.rows, number) for number in range(2, turns + 1))
    assert "a mat" in str(trial.rows[1].messages["new"])
    assert row.answered in str(trial.rows[1 + len(row.broken)].messages["new"])


async def test_commands_see_the_environment_of_the_task(trial: Trial) -> None:
    row = ROWS[trial.spec.name]
    async with trial.session(PlayEngine(row.says(row.looks), *row.done)) as session:
        ran = await trial.run(session)
    assert ran.code == 0, ran.output
    seen = str(trial.rows[1].messages["new"][-1]["content"])
    assert all(text in seen for text in row.shows), seen
    assert not any(text in seen for text in row.hides), seen


@pytest.mark.parametrize("trial", [name for name, row in ROWS.items() if row.out_of_turns], indirect=True)
async def test_a_turn_cap_of_the_harness_ends_the_run(trial: Trial) -> None:
    row = ROWS[trial.spec.name]
    engine = PlayEngine(*[row.says(f"ls {n}") for n in range(4)])
    async with trial.session(engine) as session:
        ran = await trial.run(session, max_turns=2)
    assert (ran.code, len(trial.rows)) == (row.out_of_turns, 2), ran.output
    assert trial.spec.done.turns == (row.out_of_turns,)


async def test_sub_agents_of_opencode_are_told_from_the_main_thread(
    podman: Podman, sockets: Path, tmp_path: Path
) -> None:
    """Where a spec lets it have them: two at once, each a thread of its own, all of it trained."""
    spec = load_spec("opencode")
    files = {path: text.replace('"task": "deny"', '"task": "allow"') for path, text in spec.run.files.items()}
    assert files != spec.run.files
    trial = await _trial(replace(spec, run=replace(spec.run, files=files)), podman, sockets, tmp_path)
    pieces: list[str] = []
    for animal in ("mat", "cat"):
        arguments = {"description": animal, "prompt": f"Look for the {animal}.", "subagent_type": "general"}
        pieces += ["<tool_call>", json.dumps({"name": "task", "arguments": arguments}), "</tool_call>"]
    look = calls("bash")("cat animal.txt")
    engine = PlayEngine(sampled(*pieces, END), look, look, said("A mat."), said("A mat."), calls("bash")(FIX), *DONE)
    async with trial.session(engine) as session:
        ran = await trial.run(session)
        assert (ran.code, ran.files[FILE]) == (0, AFTER), ran.output
        assert all_trained(session, trial.rows) and len(segments(session.tree).segments) == 3
    assert sorted(call.kind for call in trial.rows) == ["main"] * 3 + ["subagent"] * 4
