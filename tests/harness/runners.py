"""What the tests of the harnesses with runners of ours share: a box with bash and no Python, and the real proxy."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scene import base_image
from lego.config.schema import ImagesSection
from lego.harness.launch import LaunchValues, render
from lego.harness.spec import HarnessSpec
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import runtime_tag
from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps, Session, SessionSpec
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman
from lego.tasks.task import Task
from lego.units import parse_size
from tests.conftest import missing
from tests.harness.canned import Ran, run_sealed
from tests.images.bare import make_bare_image
from tests.proxy.families import family
from tests.proxy.parts import PlayEngine

BIG = ("opencode", "openhands", "qwen-code", "terminus-2")
TAG = "localhost/lego-test/bash:1"
DOCKERFILE = """
FROM {base} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends bash-static
FROM {bare}
COPY --from=packages /bin/bash-static /bin/bash
"""
BEFORE, AFTER = b"a mat\n", b"a cat\n"
FILE = "/app/animal.txt"


async def bash_image(podman: Podman, folder: Path) -> str:
    """An image with busybox and bash, both static, and nothing else; it is built if it is missing."""
    if podman.cli("image", "exists", TAG, check=False).returncode != 0:
        base = await base_image(podman, folder)
        text = DOCKERFILE.format(base=base, bare=await make_bare_image(podman, folder)).encode()
        podman.cli("build", "--network", "host", "--tag", TAG, "--file", "-", str(folder), input=text)
    return TAG


def skip_unless_asked_for(harness: str) -> None:
    """Skip where LEGO_REQUIRE does not name the harness."""
    if harness not in os.environ.get("LEGO_REQUIRE", "").split(","):
        missing(harness, "not asked for; make harness-matrix runs these tests")


async def built(podman: Podman, spec: HarnessSpec, folder: Path) -> str:
    """The tag of the harness's runtime image, built if it is missing. A big one only where LEGO_REQUIRE names it: its
    image is large, and its tests take minutes."""
    if spec.name in BIG:
        skip_unless_asked_for(spec.name)
    await _build(podman, [], [spec], folder)
    return runtime_tag(spec, ImagesSection())


async def built_task(podman: Podman, task: Task, folder: Path) -> None:
    """Build the task's image if it is missing."""
    await _build(podman, [task], [], folder)


async def _build(podman: Podman, tasks: Sequence[Task], specs: Sequence[HarnessSpec], folder: Path) -> None:
    section = ImagesSection()
    for result in await Builder(podman, section, folder / "logs").build(plan(tasks, specs, section)):
        assert result.status != "failed", (result.reason, result.log_path.read_text())


@dataclass
class Trial:
    """One harness before one proxy; `rows` are its calls so far."""

    podman: Podman
    spec: HarnessSpec
    runtime: str
    image: str
    sockets: Path
    rows: list[FinishedCall] = field(default_factory=list)

    @asynccontextmanager
    async def session(self, engine: PlayEngine, caps: Caps | None = None) -> AsyncIterator[Session]:
        calls = self.spec.calls
        spec = SessionSpec(
            id="t", socket_dir=self.sockets, token="sk-trial", caps=caps or Caps(40, 4000, 400_000),
            rules=CallRules(calls.subagent, calls.auxiliary, calls.volatile), on_call=self.rows.append,
        )  # fmt: skip
        async with Proxy(engine, family()) as proxy, proxy.session(spec) as session:
            yield session

    async def run(
        self,
        session: Session,
        instruction: str = "-- Fix the {animal} in animal.txt.",
        max_turns: int = 40,
        workspace: Mapping[str, bytes] | None = None,
    ) -> Ran:
        caps = session.spec.caps
        values = LaunchValues(
            instruction=instruction, token=session.token, model="policy", max_turns=max_turns,
            max_output_tokens=caps.max_output_tokens, context=caps.context, temperature=1.0, workdir="/app",
        )  # fmt: skip
        launch = render(self.spec, values, self.runtime)
        return await run_sealed(
            self.podman, self.image, launch, self.sockets, {FILE: BEFORE, **(workspace or {})}, seconds=300,
            memory=max(Limits.memory, parse_size(self.spec.run.memory)),
        )  # fmt: skip
