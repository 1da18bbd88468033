"""What verification adds to the test run itself: a stored submission graded in a fresh container, beside its test.sh
run by `podman exec` in a container that stands already, with the solution applied and the tests in it.

Added are the container (made, sealed, removed in the background), the submission laid over the pristine image, the
witness, the results read out, and tamper rules. Tests that do next to nothing, so that the difference is what is seen.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from benchmarks.measure import Measure, interleaved
from benchmarks.scene import all_passed, open_scene
from benchmarks.trials import Sides
from lego.images import recipes
from lego.rollout.site import Workshop
from lego.rollout.verification import verify_submission
from lego.rundb.store import Row

REPEATS, BUDGET = 5, 60.0
PEER = "podman exec test.sh"


def run() -> list[Measure]:
    with asyncio.Runner() as runner, tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
        scene = open_scene(Path(folder))
        workshop, paths = runner.run(scene.__aenter__())
        try:
            return _measure(runner, workshop, sorted(paths))
        finally:
            runner.run(scene.__aexit__(None, None, None))


def _measure(runner: asyncio.Runner, workshop: Workshop, paths: list[Path]) -> list[Measure]:
    runner.run(Sides(workshop, paths).scripted(len(paths), 1))
    rows = workshop.run.store.rows("SELECT * FROM trials ORDER BY task_id")
    standing = [_standing(workshop, row, path) for row, path in zip(rows, paths, strict=True)]
    try:
        taken = interleaved(
            {"ours": _each(runner, workshop, rows), "bare": lambda: _tests(workshop, standing)}, REPEATS, BUDGET
        )
    finally:
        workshop.podman.cli("rm", "--force", "--time", "0", *standing)
    return [Measure("verification of a submission", "s", taken["ours"], taken["bare"], PEER)]


def _each(runner: asyncio.Runner, workshop: Workshop, rows: list[Row]) -> Callable[[], float]:
    async def all_of_them() -> float:
        begun = perf_counter()
        all_passed([(await verify_submission(row, workshop)).reward for row in rows], "verification")
        took = (perf_counter() - begun) / len(rows)
        await workshop.podman.drain()
        return took

    return lambda: runner.run(all_of_them())


def _standing(workshop: Workshop, row: Row, task: Path) -> str:
    """A container in which the task is solved and its tests lie, by name."""
    podman, name = workshop.podman, f"bench-{uuid.uuid4().hex[:10]}"
    image = recipes.task_tag(workshop.run.tasks[row["task_id"]], workshop.run.config.images)
    podman.cli("run", "--detach", "--name", name, "--network", "none", image, "sh", "-c", "sleep infinity")
    for folder in ("solution", "tests"):
        podman.cli("cp", str(task / folder), f"{name}:/{folder}")
    podman.cli("exec", name, "bash", "-c", "mkdir -p /logs/verifier; /solution/solve.sh")
    return name


def _tests(workshop: Workshop, standing: list[str]) -> float:
    begun = perf_counter()
    for name in standing:
        workshop.podman.cli("exec", name, "bash", "/tests/test.sh")
    took = (perf_counter() - begun) / len(standing)
    rewards = [float(workshop.podman.cli("exec", name, "cat", "/logs/verifier/reward.txt").stdout) for name in standing]
    all_passed(rewards, PEER)
    return took
