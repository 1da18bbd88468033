"""From a package or a folder to validated tasks: sources, image, baseline, search."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import time
import tomllib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lego.config.schema import ImagesSection
from lego.errors import ImageError, TaskError
from lego.images import recipes
from lego.images.build import Builder
from lego.images.keys import digest
from lego.images.plan import plan
from lego.inject import layout as layouts
from lego.inject import recipe, source
from lego.inject.baseline import Baseline, measure
from lego.inject.bench import Worker, open_worker
from lego.inject.folder import Writer
from lego.inject.layout import Layout
from lego.inject.search import Search, Told, candidates
from lego.inject.source import Project
from lego.inject.state import State
from lego.inject.trial import TEST_LIMIT
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman
from lego.tasks.task import Environment, Task

_VERSION = "2"
"""Raised when what is kept is decided differently."""


@dataclass(frozen=True)
class Wanted:
    """What a person asked for. `requirements`: packages the tests need beside what the project names."""

    target: str
    count: int
    seed: int
    jobs: int
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shop:
    """Where it is done: podman, how images are built, what containers may use, and `out`, the folder of tasks.
    `say` tells a person a step; `on_told` hears each decision."""

    podman: Podman
    images: ImagesSection
    limits: Limits
    out: Path
    say: Callable[[str], None]
    on_told: Callable[[Told], None]

    @property
    def work(self) -> Path:
        """Beside `out`, on the same file system, so that what is there can be renamed and linked into it."""
        return self.out.parent / f".{self.out.name}.inject"


@dataclass(frozen=True)
class Made:
    """What came of one target. `ends`: how many candidates came to each end; `excluded`: tests left out, and why."""

    name: str
    version: str
    tasks: list[str]
    candidates: int
    ends: dict[str, int]
    tests: int
    excluded: dict[str, str]
    uncollected: dict[str, str]
    suite_seconds: float
    seconds: float


async def inject(wanted: Wanted, shop: Shop) -> Made:
    """Make `wanted.count` tasks from one target in `shop.out`, or as many as there are.

    What an earlier call with the same seed did, perhaps killed or cancelled, is not done again. Raises TaskError for a
    target that gives no tasks, ImageError where its environment cannot be built.
    """
    begun = time.monotonic()
    project = await asyncio.to_thread(source.fetch, wanted.target, shop.work / "sdists")
    layout = layouts.read(project, wanted.requirements)
    if not layout.tests:
        hint = "tests are files test_*.py or *_test.py; many sdists leave them out: name a checkout's folder instead"
        raise TaskError(f"{wanted.target}: no tests found", hint=hint, fault="user")
    _fits(project, shop.out)
    inside = resources.files("lego.inject.inside")
    text = recipe.dockerfile(layout)
    key = digest(_VERSION, project.sha256, text, layout.settings, inside.joinpath("run_tests.py").read_bytes())
    with _alone(shop.work / f"{project.name}-{project.version}") as folder:
        state = State(folder, wanted.seed, key)
        dockerfile, image = await _environment(project, layout, text, state, shop)

        @asynccontextmanager
        async def worker() -> AsyncIterator[Worker]:
            name = f"inject-{project.name}"
            async with open_worker(shop.podman, image, project.tree, layout.settings, shop.limits, name) as opened:
                yield opened

        baseline = _kept_baseline(state)
        if baseline is None:
            shop.say(f"{project.name} {project.version}: running its tests twice, and once under coverage")
            async with worker() as one:
                baseline = await measure(one, project, layout, TEST_LIMIT)
            state.write("baseline.json", baseline.to_json().encode())
        order = candidates(project, layout, baseline, wanted.seed)
        shop.say(
            f"{project.name} {project.version}: {len(baseline.stable)} tests in {baseline.seconds:.1f} s, "
            f"{len(baseline.excluded)} left out; {len(order)} candidates"
        )
        for decision in list(state.decisions.values()):
            if decision.task and not (shop.out / decision.task / "task.toml").is_file():
                state.forget(decision.candidate)
        writer = Writer(state, project, layout, baseline, dockerfile)
        search = Search(project, layout, baseline, order, state, writer, shop.out, wanted.count, shop.on_told)
        tasks = await search.run(worker, wanted.jobs)
        ends = Counter(one.reason for one in state.decisions.values())
        made = Made(
            project.name, project.version, tasks, len(order), dict(ends.most_common()), len(baseline.stable),
            dict(baseline.excluded), dict(baseline.uncollected), round(baseline.seconds, 2),
            round(time.monotonic() - begun, 1),
        )  # fmt: skip
        record = {**vars(made), "seed": wanted.seed, "source": project.origin, "sha256": project.sha256}
        if not tasks:
            told = ", ".join(f"{count} {reason}" for reason, count in ends.most_common(4)) or "there are none"
            raise TaskError(f"{wanted.target}: no candidate makes a task ({told})", fault="user")
        aside = state.write("made.json", json.dumps(record, indent=1).encode() + b"\n")
        aside.replace(shop.out / f"{project.name}-{project.version}.json")
    return made


def _fits(project: Project, out: Path) -> None:
    """Raises TaskError where `out` is no place for a project's tasks: another version's may have the same ids."""
    there = next(path for path in (out, *out.parents) if path.exists())
    if not there.is_dir():
        raise TaskError(f"{out}: {there} is a file", hint="name another folder with --out", fault="user")
    if (out / "task.toml").exists():
        raise TaskError(f"{out} is itself a task", hint="name another folder with --out", fault="user")
    for path in sorted(out.glob(f"{project.name}-*/task.toml")):
        with contextlib.suppress(OSError, ValueError):
            made = tomllib.loads(path.read_text()).get("metadata")
            if not isinstance(made, dict):
                continue
            if made.get("package") == project.name and made.get("version") != project.version:
                what = f"{out} holds tasks of {project.name} {made.get('version')}"
                hint = f"those of {project.version} need a folder of their own: name another one with --out"
                raise TaskError(what, hint=hint, fault="user")


async def _environment(project: Project, layout: Layout, text: str, state: State, shop: Shop) -> tuple[str, str]:
    """The Dockerfile, every package's version written down, and its image's tag."""
    pinned = state.read("pins.json")
    if pinned is None:
        shop.say(f"{project.name} {project.version}: finding out what its environment consists of")
        image = await _build(recipe.environment(text, project), project, shop)
        async with open_worker(shop.podman, image, project.tree, layout.settings, shop.limits, "inject-pins") as worker:
            own = {project.name, "pip"}
            installed = worker.facts["installed"]
        pinned = json.dumps({name: found for name, found in installed.items() if source.normalised(name) not in own})
        state.write("pins.json", pinned.encode())
    dockerfile = recipe.dockerfile(layout, json.loads(pinned))
    shop.say(f"{project.name} {project.version}: its image")
    return dockerfile, await _build(recipe.environment(dockerfile, project), project, shop)


async def _build(environment: Environment, project: Project, shop: Shop) -> str:
    task = Task(project.name, "", "", environment, {}, where=f"{project.name} {project.version}")
    builder = Builder(shop.podman, shop.images, shop.work / "logs")
    for result in await builder.build(plan([task], (), shop.images)):
        if result.status == "failed":
            hint = (
                f"log: {result.log_path}\nbuilding it needs the network, or a package index that pip is configured for"
            )
            raise ImageError(f"the image of {project.name} failed: {result.reason}", hint=hint, fault=result.fault)
    return recipes.task_tag(task, shop.images)


def _kept_baseline(state: State) -> Baseline | None:
    text = state.read("baseline.json")
    try:
        return Baseline.from_json(text) if text else None
    except (ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[Path]:
    """The folder of one project's search, used by one process at a time. Raises TaskError while another has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TaskError(f"another `lego tasks inject` works on {folder.name} here", fault="user") from None
        yield folder
