"""Disk for injected tasks: their folders, and the image layers above the base that they share, beside an image a task.

Twenty tasks of one package are made for real; two hundred of eight packages are ten times these folders and eight times
this image, which is said to be so: no other package is measured.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Measure
from lego.config.schema import ImagesSection
from lego.images.build import Builder
from lego.images.plan import plan
from lego.inject.run import Shop, Wanted, inject
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman
from lego.tasks import harbor

TARGET, COUNT = "boltons==26.2.0", 20
PACKAGES, TASKS = 8, 200


def run() -> list[Measure]:
    """Make the tasks; what was built is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder, Podman.open() as podman:
        return asyncio.run(_measure(podman, Path(folder)))


async def _measure(podman: Podman, folder: Path) -> list[Measure]:
    section, out = ImagesSection(), folder / "tasks"
    shop = Shop(podman, section, Limits(), out, _say, lambda told: None)
    made = await inject(Wanted(TARGET, COUNT, seed=1, jobs=2), shop)
    tasks = [harbor.load(path) for path in harbor.find(out)]
    builder = Builder(podman, section, folder / "logs")
    results = await builder.build(plan(tasks, (), section))
    sizes = {result.tag: result.bytes for result in results}
    if len(tasks) != COUNT or not all(sizes.values()):
        raise RuntimeError(f"{len(made.tasks)} tasks of {COUNT} were made, with images {sizes}")
    base = next(result for result in results if result.kind == "base")
    above = [result.bytes - base.bytes for result in results if result.kind == "task"]
    podman.cli("rmi", "--force", *(result.tag for result in results if result.kind == "task"), check=False)
    folders = _allocated(folder)
    shared = PACKAGES * sum(above) + TASKS // COUNT * folders
    return [
        Measure(f"images of {COUNT} injected tasks, above the base", "MB", sum(above) / 1e6, 0.0, ""),
        Measure(f"folders of {COUNT} injected tasks", "MB", folders / 1e6, 0.0, ""),
        Measure(
            f"{TASKS} injected tasks of {PACKAGES} packages, from {COUNT} of {made.name}", "MB", shared / 1e6,
            (TASKS * max(above) + TASKS // COUNT * folders) / 1e6, "an image a task",
        ),
    ]  # fmt: skip


def _allocated(folder: Path) -> int:
    """Bytes on disk below a folder, a file of several names once."""
    seen: dict[int, int] = {}
    for where, _, names in os.walk(folder):
        for name in names:
            info = os.lstat(os.path.join(where, name))
            seen[info.st_ino] = info.st_blocks * 512
    return sum(seen.values())


def _say(words: str) -> None:
    print(words, file=sys.stderr)
