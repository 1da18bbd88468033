"""Claude Code, unmodified and sealed in, against the real proxy: what is trained is what was sampled.

What goes wrong on the way is in test_fault_table.py.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lego.config.schema import ImagesSection
from lego.harness.launch import Launch, LaunchValues, render
from lego.harness.spec import load_spec
from lego.images.build import Builder
from lego.images.keys import base_tag
from lego.images.plan import plan
from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps, Session, SessionSpec
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.canned import Ran, run_sealed
from tests.proxy.families import END, all_trained, continued, family, said, sampled
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

SPEC = load_spec("claude-code")
BEFORE, AFTER = b"a mat\n", b"a cat\n"
Run = Callable[..., Any]


def bash(*commands: str, thinking: str = "") -> Turn:
    """A turn that thinks, and calls Bash for each command at once."""
    pieces = ["<think>", f"\n{thinking}\n", "</think>", "\n\n"] if thinking else []
    for command in commands:
        call = {"name": "Bash", "arguments": {"description": "d", "command": command}}
        pieces += ["<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"]
    return sampled(*pieces, END)


@pytest.fixture
async def box(podman: Podman, runtime: Any, sockets: Path, tmp_path: Path) -> Run:
    section = ImagesSection()
    await Builder(podman, section, tmp_path / "logs").build(plan((), [SPEC], section))
    tag = await runtime(SPEC.name)

    async def run(session: Session, max_turns: int = 20) -> Ran:
        launch = launched(session, tag, max_turns)
        return await run_sealed(podman, base_tag(section), launch, sockets, {"/app/animal.txt": BEFORE})

    return run


def launched(session: Session, tag: str, max_turns: int = 20) -> Launch:
    caps = session.spec.caps
    values = LaunchValues(
        instruction="-- Fix the animal in animal.txt.", token=session.token, model="policy", max_turns=max_turns,
        max_output_tokens=caps.max_output_tokens, context=caps.context, temperature=1.0, workdir="/app",
    )  # fmt: skip
    return render(SPEC, values, tag)


@asynccontextmanager
async def proxied(
    engine: PlayEngine, sockets: Path, rows: list[FinishedCall], caps: Caps | None = None
) -> AsyncIterator[Session]:
    calls = SPEC.calls
    spec = SessionSpec(
        id="t", socket_dir=sockets, token="sk-trial", caps=caps or Caps(30, 4000, 400_000), on_call=rows.append,
        rules=CallRules(calls.subagent, calls.auxiliary, calls.volatile),
    )  # fmt: skip
    async with Proxy(engine, family()) as proxy, proxy.session(spec) as session:
        yield session


async def test_thinking_parallel_calls_and_a_malformed_one_are_one_unbroken_segment(box: Run, sockets: Path) -> None:
    rows: list[FinishedCall] = []
    engine = PlayEngine(
        bash("cat animal.txt", "sleep 1; ls", "echo three", thinking="Which animal?"),
        sampled("<tool_call>", '{"name": "Bash", "arguments": {"command": "ls', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "Shout", "arguments": {"a": 1}}', "</tool_call>", END),
        bash("sed -i 's/mat/cat/' animal.txt", thinking="A cat."),
        said("It is a cat now.", "Done, I think."),
    )
    async with proxied(engine, sockets, rows) as session:
        ran = await box(session)
        assert ran.code == 0, ran.output
        assert all_trained(session, rows) and len(segments(session.tree).segments) == 1
    assert ran.files["/app/animal.txt"] == AFTER
    assert [(row.kind, row.status, row.drift) for row in rows] == [("main", 200, {})] * 5
    assert all(continued(engine, rows, number) for number in range(2, 6))
    result = json.loads(ran.output.strip().splitlines()[-1])
    assert result["result"] == "It is a cat now." and result["num_turns"] >= 5
    assert result["usage"]["input_tokens"] == sum(row.prompt_tokens for row in rows), "the harness has the true counts"
    assert result["usage"]["output_tokens"] == sum(len(row.completion_ids) for row in rows)


async def test_it_needs_no_c_library_of_the_task_image(
    podman: Podman, runtime: Any, bare_image: str, sockets: Path
) -> None:
    tag, rows = await runtime(SPEC.name), list[FinishedCall]()
    async with proxied(PlayEngine(said("It is a mat.")), sockets, rows) as session:
        ran = await run_sealed(podman, bare_image, launched(session, tag), sockets, {"/app/animal.txt": BEFORE})
    assert ran.code == 0 and [row.kind for row in rows] == ["main"], ran.output
    assert json.loads(ran.output.strip().splitlines()[-1])["result"] == "It is a mat."


async def test_a_turn_cap_of_the_harness_ends_the_run(box: Run, sockets: Path) -> None:
    rows: list[FinishedCall] = []
    engine = PlayEngine(*[bash("ls") for _ in range(4)])
    async with proxied(engine, sockets, rows) as session:
        ran = await box(session, max_turns=2)
    assert ran.code in SPEC.done.ok and "error_max_turns" in ran.output
    assert len(rows) == 2
