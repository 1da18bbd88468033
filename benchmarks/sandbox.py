"""What a sandbox costs, beside a bare loop over the podman command line in the same store.

"first exec": from the request for a container to its first output. "cycle": create, lay a file, run, read the changes,
remove; whole cycles a second count the removal, which ours does in the background. The bare loop is create, start,
cp, exec, diff and rm as one would type them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from benchmarks.measure import Measure, interleaved
from benchmarks.scene import base_image
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.podman import Podman
from lego.tasks.task import File

LIMITS = Limits()
FLAGS = ("--network", "none", "--memory", "512m", "--cpus", "1", "--pids-limit", "128")
REPEATS, WIDTHS, BUDGET = 5, (1, 8), 20.0
PEER = "bare podman loop"
Work = Callable[[], Awaitable[float]]


class Ours:
    """The project's own sandbox."""

    def __init__(self, podman: Podman, image: str) -> None:
        self.podman, self.image = podman, image

    async def first_exec(self) -> float:
        """Seconds to the first output."""
        begun = time.perf_counter()
        first: list[float] = []

        def on_output(stream: str, data: bytes) -> None:
            first.append(time.perf_counter() - begun)

        async with open_box(self.podman, BoxSpec(self.image, LIMITS)) as box:
            await box.run(["echo", "up"], on_output=on_output)
        await self.podman.drain()
        return first[0]

    async def cycle(self) -> float:
        """Seconds until the changes are read."""
        begun = time.perf_counter()
        spec = BoxSpec(self.image, LIMITS, workspace={"/app/a": File(b"x\n")})
        async with open_box(self.podman, spec) as box:
            ending = await box.run(["sh", "-c", "cat /app/a > /app/b"])
            changed = await box.changes(["/app"])
        if ending.rc != 0 or not any(entry.path == "/app/b" for entry in changed.entries):
            raise RuntimeError(f"the cycle did not do its work: {ending}")
        return time.perf_counter() - begun


class Bare:
    """The same over the command line, one command after the other."""

    def __init__(self, podman: Podman, image: str, folder: Path) -> None:
        self.podman, self.image = podman, image
        self.workspace = folder / "app"
        self.workspace.mkdir()
        (self.workspace / "a").write_bytes(b"x\n")

    async def first_exec(self) -> float:
        return await self.podman.call(self._first_exec)

    async def cycle(self) -> float:
        return await self.podman.call(self._cycle)

    def _up(self) -> str:
        name = f"bare-{uuid.uuid4().hex[:10]}"
        self.podman.cli("create", "--name", name, *FLAGS, self.image, "sleep", "infinity")
        self.podman.cli("start", name)
        return name

    def _down(self, name: str) -> None:
        self.podman.cli("rm", "--force", "--time", "0", name)

    def _first_exec(self) -> float:
        begun = time.perf_counter()
        name = self._up()
        self.podman.cli("exec", name, "echo", "up")
        taken = time.perf_counter() - begun
        self._down(name)
        return taken

    def _cycle(self) -> float:
        begun = time.perf_counter()
        name = self._up()
        self.podman.cli("cp", str(self.workspace), f"{name}:/")
        self.podman.cli("exec", name, "sh", "-c", "cat /app/a > /app/b")
        self.podman.cli("diff", name)
        self._down(name)
        return time.perf_counter() - begun


async def rate(work: Work, width: int, podman: Podman) -> float:
    """Cycles a second, removal included."""
    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(width)))
    await podman.drain()
    return width / (time.perf_counter() - begun)


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory() as name, Podman.open() as podman, asyncio.Runner() as runner:
        image = runner.run(base_image(podman, Path(name)))
        ours, bare = Ours(podman, image), Bare(podman, image, Path(name))

        def seconds(mine: Work, theirs: Work) -> dict[str, float]:
            return interleaved({"ours": _run(runner, mine), "bare": _run(runner, theirs)}, REPEATS, BUDGET)

        measures = []
        for what, mine, theirs in (
            ("create to first exec", ours.first_exec, bare.first_exec),
            ("cycle until its changes are read", ours.cycle, bare.cycle),
        ):
            medians = seconds(mine, theirs)
            measures.append(Measure(what, "s", medians["ours"], medians["bare"], PEER))
        for width in WIDTHS:
            medians = seconds(partial(rate, ours.cycle, width, podman), partial(rate, bare.cycle, width, podman))
            measures.append(Measure(f"cycles, {width} at once", "1/s", medians["ours"], medians["bare"], PEER))
    return measures


def _run(runner: asyncio.Runner, work: Work) -> Callable[[], float]:
    async def once() -> float:
        return await work()

    return lambda: runner.run(once())
