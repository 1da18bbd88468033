"""What all checks of harnesses of one command share: podman, images, a policy to force and a trainer to recompute."""

from __future__ import annotations

import asyncio
import sysconfig
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lego.config.schema import Config
from lego.engine.base import Engine
from lego.engine.open import open_engine
from lego.harness.spec import HarnessSpec
from lego.images.build import Builder, ImageResult, OnEvent
from lego.images.plan import plan
from lego.policy import PolicyRef
from lego.probes.scenarios import TASKS
from lego.rollout.site import podman_settings
from lego.rollout.stopping import Stop
from lego.sandbox import reaper
from lego.sandbox.podman import Podman
from lego.tasks.load import load_tasks
from lego.trainer.step import Trainer
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_tokenizer

_VOCABULARY = 4096
_LAYERS = 2
_SPREAD = 0.1
_CORPUS_FILES = 20


def make_policy(folder: Path, context: int) -> None:
    """A random policy for checks: its log-probs hang on every token before them, and its vocabulary, made of English
    and code, is large enough for a harness's long first prompt."""
    from lego.trainer.tiny import make_tiny

    library = Path(sysconfig.get_path("stdlib"))
    corpus = [path.read_text(errors="replace") for path in sorted(library.glob("*.py"))[:_CORPUS_FILES]]
    make_tiny(folder, 0, corpus, vocabulary=_VOCABULARY, context=context, layers=_LAYERS, spread=_SPREAD)


@dataclass(frozen=True)
class Bench:
    """`folder` holds the runs and logs of the checks; `config` is what they stand on, its policy.model the folder of
    the policy that `engine` and `trainer` hold. `tell` takes a line of progress."""

    folder: Path
    config: Config
    podman: Podman
    engine: Engine
    trainer: Trainer
    rendering: Rendering
    stop: Stop
    tell: Callable[[str], None]

    async def build(self, specs: Sequence[HarnessSpec], on_event: OnEvent) -> list[ImageResult]:
        """Build what is missing of the images of these harnesses and of the check's task."""
        section = self.config.images
        builder = Builder(self.podman, section, self.folder / "images")
        return await builder.build(plan(load_tasks(TASKS.train), specs, section), on_event)


@asynccontextmanager
async def open_bench(folder: Path, config: Config, stop: Stop, tell: Callable[[str], None]) -> AsyncIterator[Bench]:
    """Open podman and load the policy of `config`. Raises SandboxError, EngineError or TrainerError."""
    section = replace(config.engine, kind="transformers", max_concurrent=1)
    rendering = open_rendering(load_tokenizer(config.policy.model), config.policy.renderer, config.policy.model)
    with Podman.open(podman_settings(config)) as podman:
        await podman.call(reaper.sweep, podman)
        engine = open_engine(section)
        try:
            await engine.load(PolicyRef(0, config.policy.model, ""))
            trainer = await asyncio.to_thread(
                Trainer, config.policy.model, config.train, dtype=section.dtype, device=section.device,
                threads=section.threads,
            )  # fmt: skip
            yield Bench(folder, config, podman, engine, trainer, rendering, stop, tell)
        finally:
            await engine.close()
        await podman.call(reaper.sweep, podman)
