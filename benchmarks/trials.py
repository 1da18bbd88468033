"""Whole trials, beside a bare loop over podman's command line on the same images.

"oracle": the task's solution in a sealed container, what it changed taken out, a fresh container for the tests.
"scripted": everything a rollout does but sample: tiny-agent in its container asking the proxy, rows written, the
submission verified in a fresh container. The bare loop seals its network too, but runs solution and tests in one
container, and records nothing. All three take turns; a trial's time is the wall clock over the trials of a turn,
containers removed.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.scene import all_passed, bare_oracle, open_scene
from lego.images import recipes
from lego.rollout.settings import settings_for
from lego.rollout.site import Workshop
from lego.rollout.stopping import Stop
from lego.rollout.verification import verify_candidate
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import rounds, trials, verdicts
from lego.verifier.grade import Oracle

TURNS = {1: 2, 4: 4, 8: 8}
"""Concurrency -> trials in a turn."""
REPEATS, BUDGET = 3, 75.0
"""Turns of each side, and the seconds after which no further ones begin."""
PEER = "bare podman loop"

Turn = Callable[[int, int], Awaitable[None]]
"""Runs so many trials, so many at once."""


class Sides:
    """The three ways to run trials."""

    def __init__(self, workshop: Workshop, paths: list[Path]) -> None:
        self.workshop = workshop
        self.tasks = sorted(workshop.run.tasks.values(), key=lambda task: task.id)
        self.paths = sorted(paths)
        self.ordinal = 0

    async def oracle(self, count: int, at_once: int) -> None:
        gate = asyncio.Semaphore(at_once)

        async def one(number: int) -> float | None:
            async with gate:
                verdict = await verify_candidate(Oracle(), self.tasks[number % len(self.tasks)], self.workshop)
                return verdict.reward

        all_passed(await asyncio.gather(*map(one, range(count))), "oracle")
        await self.workshop.podman.drain()

    async def scripted(self, count: int, at_once: int) -> None:
        run, store = self.workshop.run, self.workshop.run.store
        run.config.rollout.concurrency = run.config.verify.concurrency = at_once
        self.ordinal += 1
        chosen = self.tasks[: min(count, len(self.tasks))]
        round_ = rounds.open_round(
            store,
            "train",
            ordinal=self.ordinal,
            policy_version=run.newest_policy().version,
            tasks=[(task.id, "tiny-agent") for task in chosen],
            samples=count // len(chosen),
            settings=settings_for(run.config, "train").as_dict(),
        )
        site, stop = await self.workshop.site(round_), Stop()
        await asyncio.gather(
            run_trials(site, stop, _nothing),
            run_verifications(self.workshop, round_, stop, _nothing, lambda: not trials.unfinished(store, round_.id)),
        )
        await self.workshop.podman.drain()
        rewards = [row["reward"] for row in verdicts.graded(store, round_.id)]
        all_passed([*rewards, *[None] * (count - len(rewards))], "scripted")
        rounds.close_round(store, round_.id, "measured")

    async def bare(self, count: int, at_once: int) -> None:
        gate, podman = asyncio.Semaphore(at_once), self.workshop.podman

        async def one(number: int) -> float:
            which = number % len(self.tasks)
            image = recipes.task_tag(self.tasks[which], self.workshop.run.config.images)
            async with gate:
                return await asyncio.to_thread(bare_oracle, podman, self.paths[which], image)

        all_passed(await asyncio.gather(*map(one, range(count))), PEER)


def _nothing() -> None:
    """Nobody watches the progress."""


async def measure() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
        async with open_scene(Path(folder)) as (workshop, paths):
            sides = Sides(workshop, paths)
            turns: dict[str, Turn] = {"oracle": sides.oracle, "scripted": sides.scripted, "bare": sides.bare}
            for turn in turns.values():
                await turn(1, 1)
            taken: dict[tuple[str, int], list[float]] = {}
            started = time.perf_counter()
            for _ in range(REPEATS):
                if time.perf_counter() - started > BUDGET:
                    break
                for at_once, count in TURNS.items():
                    for name, turn in turns.items():
                        begun = time.perf_counter()
                        await turn(count, at_once)
                        taken.setdefault((name, at_once), []).append((time.perf_counter() - begun) / count)
    medians = {key: statistics.median(seconds) for key, seconds in taken.items()}
    measures = []
    for at_once in TURNS:
        bare = medians["bare", at_once]
        goal = "at most 1.0 s" if at_once in (1, 4) else ""
        measures += [
            Measure(f"oracle trial, {at_once} at once", "s a trial", medians["oracle", at_once], bare, PEER, goal),
            Measure(
                f"scripted trial, {at_once} at once", "trials/min", 60 / medians["scripted", at_once], 60 / bare, PEER
            ),
        ]
    return measures


def run() -> list[Measure]:
    return asyncio.run(measure())
