"""What a sandbox costs, beside a bare loop over the podman command line in the same run and the same store.

    python benchmarks/sandbox.py [--rounds 7] [--concurrent 8]

"first exec": from the request for a container to its first output. "cycle": create, lay a file, run, read the changes,
remove; at 1 and at `--concurrent`. "oracle trial": the solution of a generated task in one container, its submission
verified in a fresh one. The bare loop is create, start, cp, exec and rm as one would type them; its trial runs solution
and tests in one and the same container, so it does less. Needs the base image (lego build-images).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from lego.config.schema import ImagesSection, TaskSource
from lego.images.build import Builder, plan
from lego.images.recipes import task_tag
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.podman import Podman
from lego.tasks.load import load_tasks
from lego.tasks.task import File, Task
from lego.verifier.grade import Oracle, verify

LIMITS = Limits()
FLAGS = ("--network", "none", "--memory", "512m", "--cpus", "1", "--pids-limit", "128")
Work = Callable[[], Awaitable[float]]


class Ours:
    """The project's own sandbox and verifier."""

    def __init__(self, podman: Podman, task: Task, image: str) -> None:
        self.podman, self.task, self.image = podman, task, image

    async def first_exec(self) -> float:
        """Seconds to the first output."""
        begun = time.perf_counter()
        first: list[float] = []
        async with open_box(self.podman, BoxSpec(self.image, LIMITS)) as box:
            await box.run(["echo", "up"], on_output=lambda stream, data: first.append(time.perf_counter() - begun))
        await self.podman.drain()
        return first[0]

    async def cycle(self) -> float:
        begun = time.perf_counter()
        spec = BoxSpec(self.image, LIMITS, workspace={"/app/a": File(b"x\n")})
        async with open_box(self.podman, spec) as box:
            ending = await box.run(["sh", "-c", "cat /app/a > /app/b"])
            changed = await box.changes(["/app"])
        assert ending.rc == 0 and any(entry.path == "/app/b" for entry in changed.entries)
        return time.perf_counter() - begun

    async def trial(self) -> float:
        begun = time.perf_counter()
        verdict = await verify(self.podman, self.task, self.image, Oracle(), LIMITS)
        assert verdict.reward == 1.0, verdict
        return time.perf_counter() - begun


class Bare:
    """The same over the command line, one command after the other."""

    def __init__(self, podman: Podman, task: Task, image: str, folder: Path) -> None:
        self.podman, self.image, self.folder = podman, image, folder
        for place, tree in (("solution", task.solution), ("tests", task.tests)):
            for path, file in tree.items():
                target = folder / place / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(file.data)
                target.chmod(file.mode | 0o555)
        self.workspace = folder / "app"
        for path, file in task.environment.workspace.items():
            target = folder / path.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)

    async def first_exec(self) -> float:
        return await self.podman.call(self._first_exec)

    async def cycle(self) -> float:
        return await self.podman.call(self._cycle)

    async def trial(self) -> float:
        return await self.podman.call(self._trial)

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
        self.podman.cli("exec", name, "sh", "-c", "cat /app/* > /app/b")
        self.podman.cli("diff", name)
        self._down(name)
        return time.perf_counter() - begun

    def _trial(self) -> float:
        begun = time.perf_counter()
        name = self._up()
        for place in ("app", "solution", "tests"):
            self.podman.cli("cp", str(self.folder / place), f"{name}:/")
        self.podman.cli("exec", name, "sh", "-c", "mkdir -p /logs/verifier; /solution/solve.sh")
        self.podman.cli("exec", name, "sh", "-c", "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1")
        reward = self.podman.cli("exec", name, "cat", "/logs/verifier/reward.txt").stdout
        self._down(name)
        assert float(reward) == 1.0
        return time.perf_counter() - begun


async def interleaved(rounds: int, ours: Work, bare: Work) -> tuple[float, float]:
    """Median seconds of each, taken in turns so that a busy spell hits both."""
    mine, theirs = [], []
    for _ in range(rounds):
        mine.append(await ours())
        theirs.append(await bare())
    return statistics.median(mine), statistics.median(theirs)


async def rate(work: Work, count: int, concurrent: int, podman: Podman) -> float:
    """Cycles a second, removal included."""
    gate = asyncio.Semaphore(concurrent)

    async def one() -> None:
        async with gate:
            await work()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    await podman.drain()
    return count / (time.perf_counter() - begun)


async def measure(podman: Podman, rounds: int, concurrent: int) -> None:
    section = ImagesSection()
    (task,) = load_tasks([TaskSource(source="family", name="off-by-one", count=1, seed=1)])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for built in await Builder(podman, section, folder / "logs").build(plan([task], [], section)):
            assert built.status != "failed", built.reason
        image = task_tag(task, section)
        ours, bare = Ours(podman, replace(task, id="bench"), image), Bare(podman, task, image, folder)
        await ours.trial()
        await bare.trial()
        print(f"{'median seconds':28}{'lego':>9}{'bare':>9}{'ratio':>8}")
        for label, mine, theirs in (
            ("create to first exec", ours.first_exec, bare.first_exec),
            ("cycle", ours.cycle, bare.cycle),
            ("oracle trial", ours.trial, bare.trial),
        ):
            a, b = await interleaved(rounds, mine, theirs)
            print(f"{label:28}{a:9.3f}{b:9.3f}{a / b:8.2f}")
        print(f"{'a second':28}{'lego':>9}{'bare':>9}{'ratio':>8}")
        for label, mine, theirs in (("cycles", ours.cycle, bare.cycle), ("oracle trials", ours.trial, bare.trial)):
            for width in (1, concurrent):
                count = max(rounds, width * 2)
                a, b = await rate(mine, count, width, podman), await rate(theirs, count, width, podman)
                print(f"{f'{label} at {width}':28}{a:9.2f}{b:9.2f}{a / b:8.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--concurrent", type=int, default=8)
    options = parser.parse_args()
    with Podman.open() as podman:
        asyncio.run(measure(podman, options.rounds, options.concurrent))


if __name__ == "__main__":
    main()
