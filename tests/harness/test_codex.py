"""Codex, unmodified and sealed in, against the real proxy: what is trained is what was sampled."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lego.config.schema import ImagesSection
from lego.harness.launch import LaunchValues, render
from lego.harness.spec import load_spec
from lego.images.keys import base_tag
from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.proxy.session import Caps, Session, SessionSpec
from lego.sandbox.podman import Podman
from lego.trajectory.segments import segments
from tests.harness.canned import Ran, run_sealed
from tests.proxy.families import END, all_trained, continued, family, said, sampled
from tests.proxy.parts import PlayEngine, Turn

pytestmark = pytest.mark.podman

SPEC = load_spec("codex")
BEFORE, AFTER = b"a mat\n", b"a cat\n"
Run = Callable[[Session], Any]


def shell(*commands: str, thinking: str = "") -> Turn:
    """A turn that thinks, and calls the shell for each command at once."""
    pieces = ["<think>", f"\n{thinking}\n", "</think>", "\n\n"] if thinking else []
    for command in commands:
        call = {"name": "exec_command", "arguments": {"cmd": command}}
        pieces += ["<tool_call>", f"\n{json.dumps(call)}\n", "</tool_call>"]
    return sampled(*pieces, END)


@pytest.fixture
async def box(podman: Podman, runtime: Any, sockets: Path) -> Run:
    tag = await runtime(SPEC.name)

    async def run(session: Session) -> Ran:
        caps = session.spec.caps
        values = LaunchValues(
            instruction="-- Fix the animal in animal.txt.", token=session.token, model="policy", max_turns=20,
            max_output_tokens=caps.max_output_tokens, context=caps.context, temperature=1.0, workdir="/app",
        )  # fmt: skip
        launch = render(SPEC, values, tag)
        return await run_sealed(podman, base_tag(ImagesSection()), launch, sockets, {"/app/animal.txt": BEFORE})

    return run


@asynccontextmanager
async def proxied(
    engine: PlayEngine, sockets: Path, rows: list[FinishedCall], caps: Caps | None = None
) -> AsyncIterator[Session]:
    spec = SessionSpec(
        id="t", socket_dir=sockets, token="sk-trial", caps=caps or Caps(30, 4000, 400_000), on_call=rows.append
    )
    async with Proxy(engine, family()) as proxy, proxy.session(spec) as session:
        yield session


async def test_thinking_parallel_calls_and_malformed_ones_are_one_unbroken_segment(box: Run, sockets: Path) -> None:
    rows: list[FinishedCall] = []
    engine = PlayEngine(
        shell("cat animal.txt", "sleep 1; ls", "echo three", thinking="Which animal?"),
        sampled("<tool_call>", '{"name": "exec_command", "arguments": {"cmd": "ls', "</tool_call>", END),
        sampled("<tool_call>", '{"name": "shout", "arguments": {"a": 1}}', "</tool_call>", END),
        shell("sed -i 's/mat/cat/' animal.txt", thinking="A cat."),
        said("It is a cat now.", "Done, I think."),
    )
    async with proxied(engine, sockets, rows) as session:
        ran = await box(session)
        assert ran.code == 0, ran.output
        assert all_trained(session, rows) and len(segments(session.tree).segments) == 1
    assert ran.files["/app/animal.txt"] == AFTER, ran.output
    assert [(row.kind, row.status, row.drift) for row in rows] == [("main", 200, {})] * 5
    assert all(continued(engine, rows, number) for number in range(2, 6))
    events = [json.loads(line) for line in ran.output.splitlines() if line.startswith("{")]
    (usage,) = [event["usage"] for event in events if event["type"] == "turn.completed"]
    assert usage["input_tokens"] == sum(row.prompt_tokens for row in rows), "the harness has the true counts"
    assert usage["output_tokens"] == sum(len(row.completion_ids) for row in rows)


@pytest.mark.parametrize("gated", [0, 2, 7])
async def test_an_engine_fault_is_tried_again_and_what_was_cut_is_not_trained(
    box: Run, sockets: Path, gated: int
) -> None:
    rows: list[FinishedCall] = []
    look = shell("cat animal.txt", "echo two", thinking="Which animal?")
    cut = Turn("", pieces=9, raw=look.raw, gated=gated, fail="out of memory")
    engine = PlayEngine(cut, look, said("It is a mat."))
    async with proxied(engine, sockets, rows) as session:
        ran = await box(session)
        parts = segments(session.tree)
    assert ran.code == 0, ran.output
    assert [row.fate for row in rows] == ["abandoned", "delivered", "delivered"]
    assert sum(parts.excluded.values()) == len(rows[0].completion_ids) and not parts.dropped
    assert continued(engine, rows, 3)


async def test_an_overflow_is_compacted_and_the_trial_goes_on(box: Run, sockets: Path) -> None:
    rows: list[FinishedCall] = []
    big = shell("cat animal.txt; seq 1 3000", thinking="Which animal?")
    fix = shell("sed -i 's/mat/cat/' animal.txt", thinking="A cat.")
    engine = PlayEngine(big, said("animal.txt has a mat.", "I sum up."), fix, said("Done."))
    async with proxied(engine, sockets, rows, Caps(30, 1000, 24_000)) as session:
        ran = await box(session)
        parts = segments(session.tree)
    assert (ran.code, ran.files["/app/animal.txt"]) == (0, AFTER), ran.output
    assert {row.reason for row in rows if row.kind == "rejected"} == {"context_overflow"}
    calls = [row for row in rows if row.kind != "rejected"]
    assert len(calls) == 4 and not parts.dropped and not parts.excluded
    assert sum(s.sampled for s in parts.segments) == sum(len(row.completion_ids) for row in calls)
