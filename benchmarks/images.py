"""Images built a minute, cold, warm (in podman's layer cache, but without their names) and unchanged, beside a bare
loop of `podman build` over the same folders in the same store.

The images are a task's usual shape: a shared first half and files of its own. "Unchanged" is one `build` over a
hundred tasks whose images are all there.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.scene import base_image
from lego.config.schema import ImagesSection
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.images.scratch import write_tree
from lego.sandbox.podman import Podman
from lego.tasks.task import Environment, File, Task

COUNT, UNCHANGED = 10, 100
PEER = "bare podman build"


def run() -> list[Measure]:
    """Build for real; what was built is removed afterwards."""
    return asyncio.run(_run())


async def _run() -> list[Measure]:
    section = ImagesSection()
    with tempfile.TemporaryDirectory() as name, Podman.open() as podman:
        folder = Path(name)
        base = await base_image(podman, folder)
        tasks = [_task(base, number) for number in range(COUNT)]
        peers = [_task(base, number) for number in range(COUNT)]
        many = [_task(base, number, light=True) for number in range(UNCHANGED)]
        try:
            return await _measure(podman, section, folder, tasks, peers, many)
        finally:
            tags = [task_tag(task, section) for task in (*tasks, *many)]
            podman.cli("rmi", "--force", *tags, *map(_peer, peers), check=False)


async def _measure(
    podman: Podman, section: ImagesSection, folder: Path, tasks: list[Task], peers: list[Task], many: list[Task]
) -> list[Measure]:
    ours = {"cold": await _ours(podman, section, folder, tasks)}
    theirs = {"cold": _theirs(podman, folder, peers)}
    for tag in (*(task_tag(task, section) for task in tasks), *map(_peer, peers)):
        podman.cli("untag", tag)
    ours["warm"], theirs["warm"] = await _ours(podman, section, folder, tasks), _theirs(podman, folder, peers)
    await _ours(podman, section, folder, many)
    unchanged = await _ours(podman, section, folder, many)
    begun = time.perf_counter()
    for task in many:
        podman.cli("image", "exists", task_tag(task, section))
    asked = time.perf_counter() - begun
    rates = [
        Measure(f"images built, {how}", "a minute", COUNT / ours[how] * 60, COUNT / theirs[how] * 60, PEER)
        for how in ("cold", "warm")
    ]
    all_there = Measure(
        f"{UNCHANGED} unchanged tasks", "s", unchanged, asked, "a loop of podman image exists", goal="< 2 s in all"
    )
    return [*rates, all_there]


async def _ours(podman: Podman, section: ImagesSection, folder: Path, tasks: Sequence[Task]) -> float:
    begun = time.perf_counter()
    results = await Builder(podman, section, folder / "logs").build(plan(tasks, (), section))
    took = time.perf_counter() - begun
    if failed := [result for result in results if result.status == "failed"]:
        raise RuntimeError(f"{failed[0].name} failed: {failed[0].reason}")
    return took


def _theirs(podman: Podman, folder: Path, tasks: Sequence[Task]) -> float:
    for task in tasks:
        write_tree(task.environment.context, folder / task.digest)
    begun = time.perf_counter()
    for task in tasks:
        podman.cli("build", "--network", "host", "--tag", _peer(task), str(folder / task.digest))
    return time.perf_counter() - begun


def _task(base: str, number: int, light: bool = False) -> Task:
    unique = uuid.uuid4().hex
    text = f"FROM {base}\nRUN echo shared > /etc/shared\nCOPY . /app/\n"
    if not light:
        text += "RUN cd /app && git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -qm a\n"
    context = {"Dockerfile": File(text.encode()), "app.py": File(f"x = '{unique}'\n".encode() * 100)}
    return Task(f"b{number}", unique, "", Environment(context=context), tests={})


def _peer(task: Task) -> str:
    return f"localhost/lego-bench-peer:{task.digest}"
