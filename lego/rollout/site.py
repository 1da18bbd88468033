"""Where trials run: one podman, one engine and one proxy for as long as a command lasts; one Site a round."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from lego.config.schema import Config, EngineSection
from lego.engine.base import Engine
from lego.engine.open import open_engine
from lego.errors import ConfigError, ImageError
from lego.harness.spec import HarnessSpec
from lego.images import inspection, recipes
from lego.images.build import Builder, ImageEvent, ImageResult
from lego.images.plan import plan
from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.rollout.run import Run
from lego.rollout.script import Script, turns_of
from lego.rollout.settings import RoundSettings
from lego.rundb import catalogue
from lego.rundb.rounds import Round
from lego.rundb.trials import Trial
from lego.sandbox import reaper
from lego.sandbox.create import Limits
from lego.sandbox.logs import OnOutput
from lego.sandbox.podman import Podman, PodmanSettings
from lego.tasks.task import Environment, Task
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_tokenizer
from lego.units import parse_size

OnCall = Callable[[FinishedCall], None]


@dataclass(frozen=True)
class Site:
    """What every trial of a round shares. `failed_images`: tags of task images that do not build, and why.
    `script`: what a scripted trial says."""

    run: Run
    round: Round
    settings: RoundSettings
    podman: Podman
    engine: Engine
    rendering: Rendering
    proxy: Proxy
    failed_images: Mapping[str, str]
    on_output: OnOutput | None = None
    on_call: OnCall | None = None
    script: Script = turns_of

    def task(self, trial: Trial) -> Task:
        return self.run.tasks[trial.task_id]

    def spec(self, trial: Trial) -> HarnessSpec:
        return self.run.specs[trial.harness]

    def runtime_tag(self, spec: HarnessSpec) -> str:
        return recipes.runtime_tag(spec, self.run.config.images)

    def task_tag(self, task: Task) -> str:
        """The image of a task. Raises ImageError (fault task) where it, or its verifier's, could not be built."""
        _refuse_unbuilt(task, self.run.config, self.failed_images)
        return recipes.task_tag(task, self.run.config.images)

    def limits(self, task: Task) -> Limits:
        return limits_of(self.run, task.environment)

    def seed_of(self, trial: Trial) -> int:
        """Every attempt of every sample draws its own numbers, the same in every repetition of the run."""
        which_round = f"{self.run.config.run.seed}/{self.round.kind}/{self.round.ordinal}"
        text = f"{which_round}/{trial.task_id}/{trial.harness}/{trial.sample}/{trial.attempt}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")


def _refuse_unbuilt(task: Task, config: Config, failed: Mapping[str, str]) -> None:
    section = config.images
    graded = [step.task for step in task.steps] or [task]
    verifiers = [(recipes.verifier_tag(one, section), "verifier's image") for one in graded]
    for tag, whose in ((recipes.task_tag(task, section), "image"), *verifiers):
        if tag in failed:
            raise ImageError(f"the {whose} of {task.id} does not build: {failed[tag]}", fault="task")


def limits_of(run: Run, environment: Environment) -> Limits:
    """The run's limits, tightened by what a task asks for; a task cannot take more than the run allows."""
    section = run.config.sandbox
    memory, disk = parse_size(section.memory), parse_size(section.disk)
    return Limits(
        memory=min(memory, environment.memory_mb << 20) if environment.memory_mb else memory,
        pids=section.pids,
        cpus=min(section.cpus, environment.cpus) if environment.cpus else section.cpus,
        file_size=disk,
        disk=min(disk, environment.storage_mb << 20) if environment.storage_mb else disk,
    )


class Workshop:
    """Opened once a command. Engines are opened when first needed and kept warm."""

    def __init__(self, run: Run, podman: Podman, stack: AsyncExitStack) -> None:
        self.run = run
        self.podman = podman
        self._stack = stack
        self._engines: dict[str, tuple[Engine, Rendering, Proxy]] = {}
        self._failed_images: dict[str, str] = {}

    async def site(self, round_: Round, on_output: OnOutput | None = None, on_call: OnCall | None = None) -> Site:
        """The site of a round, its engine holding the round's policy."""
        settings = RoundSettings.of(round_.settings)
        policy = self.run.policy(round_.policy_version)
        engine, rendering, proxy = await self._engine(settings, policy.path)
        if engine.policy_version != policy.version or engine.sampler == "script":
            await engine.load(policy)
        return Site(
            self.run, round_, settings, self.podman, engine, rendering, proxy, self._failed_images, on_output, on_call
        )

    async def _engine(self, settings: RoundSettings, policy_path: str) -> tuple[Engine, Rendering, Proxy]:
        config = self.run.config
        section = config.engine if settings.sampler == "policy" else EngineSection(kind="scripted")
        if settings.sampler == "policy" and section.kind == "scripted":
            raise ConfigError(
                "this round samples from the policy, but engine.kind is scripted", hint="engine.kind=transformers"
            )
        if section.kind not in self._engines:
            rendering = open_rendering(load_tokenizer(policy_path), config.policy.renderer, config.policy.model)
            engine = open_engine(section, config.policy.context)
            self._stack.push_async_callback(engine.close)
            proxy = await self._stack.enter_async_context(Proxy(engine, rendering))
            self._engines[section.kind] = (engine, rendering, proxy)
        return self._engines[section.kind]

    async def build_images(
        self, tasks: list[Task], specs: list[HarnessSpec], on_event: Callable[[ImageEvent], None] = lambda event: None
    ) -> list[ImageResult]:
        """Build what is missing and record every image."""
        section = self.run.config.images
        builder = Builder(self.podman, section, self.run.logs_dir / "images")
        results = await builder.build(plan(tasks, specs, section), on_event)
        for result in results:
            catalogue.record_image(
                self.run.store,
                key=result.key,
                kind=result.kind,
                name=result.name,
                tag=result.tag,
                status=result.status,
                log_path=str(result.log_path),
                seconds=result.seconds,
                size=result.bytes,
                reason=result.reason,
            )
            if result.status == "failed" and result.fault == "task":
                self._failed_images[result.tag] = f"{result.reason} (log: {result.log_path})"
        return results

    def copies(self, task: Task, made: Mapping[str, str]) -> list[str]:
        """Files of the agent's image that are what the solution makes (lego.images.inspection), in words."""
        key = recipes.task_recipe(task, self.run.config.images).key
        seen = inspection.kept(self.podman.paths.store, key)
        return inspection.copies(seen, made) if seen else []

    def refuse_unbuilt(self, task: Task) -> None:
        """Raises ImageError (fault task) where the task's image, or its verifier's, could not be built."""
        _refuse_unbuilt(task, self.run.config, self._failed_images)


def podman_settings(config: Config) -> PodmanSettings:
    section = config.sandbox
    return PodmanSettings(
        store=Path(section.store) if section.store else None,
        runtime=section.runtime,
        accept_unenforced_limits=section.accept_unenforced_limits,
        disk_reserve=parse_size(section.disk_reserve),
    )


@asynccontextmanager
async def open_workshop(run: Run) -> AsyncIterator[Workshop]:
    """Open podman, sweep what dead workers left, and close everything in the end."""
    podman = Podman.open(podman_settings(run.config))
    try:
        await podman.call(reaper.sweep, podman)
        async with AsyncExitStack() as stack:
            yield Workshop(run, podman, stack)
        # What this process could not remove at the time is removed now, not by whoever comes next.
        await podman.drain()
        await podman.call(lambda: reaper.sweep(podman, own=True))
    finally:
        podman.close()
