"""Running one round from a command: images, trials, verification, each with its progress."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence

import click

from lego.rollout.refill import refill
from lego.rollout.run import Run
from lego.rollout.site import Workshop
from lego.rollout.stopping import Stop
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import rounds, trials
from lego.rundb.rounds import Round
from lego.rundb.summary import RoundSummary, summarise
from stages._building import build_with_progress, refuse_failed
from stages._common import Progress, progress


def heading(round_: Round) -> str:
    settings = round_.settings
    return (
        f"{'round' if round_.kind == 'train' else round_.kind} {round_.ordinal} · policy {round_.policy_version} · "
        f"{settings['samples']} sample{'s' if settings['samples'] != 1 else ''} a task · {settings['sampler']}"
    )


def refilled(run: Run, round_: Round) -> bool:
    """Add to a round what it lacks in groups with spread (lego.rollout.refill), and say so; whether anything was."""
    lacking = refill(run, round_)
    if lacking:
        more = len(lacking.tasks)
        click.echo(f"{lacking}: {more} more task{'s' if more != 1 else ''}, of the same policy", err=True)
    return lacking is not None


async def ready_images(workshop: Workshop, round_: Round, stop: Stop) -> None:
    """Build what the round's tasks and harnesses still lack; a failed task image fails its trials, nothing else.
    A stop ends the builds at once.

    Raises ImageError when the base or a harness image cannot be built, or any for want of disk or podman.
    """
    entries = rounds.tasks_of(workshop.run.store, round_.id)
    tasks = [workshop.run.tasks[task] for task, _ in entries]
    specs = [workshop.run.specs[name] for name in sorted({harness for _, harness in entries})]
    building = build_with_progress(lambda on_event: workshop.build_images(tasks, specs, on_event))
    results = await stop.or_abandon(building) or []
    if built := [result for result in results if result.status == "built"]:
        click.echo(f"images: {len(built)} built in {sum(result.seconds for result in built):.0f} s", err=True)
    refuse_failed(results)


async def run_round(
    workshop: Workshop, round_: Round, stop: Stop, *, trials_too: bool = True, verify_too: bool = True
) -> RoundSummary:
    """Run the round's trials and verification, overlapped, as far as they are not done yet."""
    store = workshop.run.store
    if trials_too and trials.unfinished(store, round_.id):
        await ready_images(workshop, round_, stop)
        if stop.asked.is_set():
            return summarise(store, round_)
    title = "trials" if trials_too else "verdicts"
    with progress(title, heading=heading(round_)) as bar:
        before, begun = summarise(store, round_).sampled, time.monotonic()

        def show() -> None:
            summary = summarise(store, round_)
            speed = (summary.sampled - before) / max(1.0, time.monotonic() - begun)
            _show(bar, summary, speed, site.engine.stats().waiting if site else 0, trials_too)

        def coming() -> int:
            """Trials that will still finish: without trials of our own, those that another process runs now."""
            return (
                trials.unfinished(store, round_.id) if trials_too else trials.counts(store, round_.id).get("running", 0)
            )

        site = await workshop.site(round_) if trials_too else None
        show()
        works = []
        if site is not None:
            works.append(run_trials(site, stop, show))
        if verify_too:
            works.append(run_verifications(workshop, round_, stop, show, lambda: not coming()))
        await _together(works)
        show()
    return summarise(store, round_)


async def _together(works: Sequence[Coroutine[None, None, None]]) -> None:
    """Run them at once; the first error ends the others and is raised as it is."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _show(bar: Progress, summary: RoundSummary, speed: float, waiting: int, trials_too: bool) -> None:
    """`speed`: tokens sampled a second since this command took the round up, by all who work on it. `waiting`: calls
    that the engine has no room for yet."""
    turns = [] if summary.turns is None else [f"turns {summary.turns:.1f} avg"]
    detail = "   ".join(
        (
            f"tokens {summary.sampled} sampled{f' · {speed:.0f}/s' if speed >= 1 else ''}",
            *turns,
            f"verified {summary.verified}",
            f"infra faults {summary.infra}",
            *([f"waiting for the engine {waiting}"] if waiting else []),
        )
    )
    if trials_too:
        bar.update(summary.done, total=summary.slots, note=f"{summary.running} running", detail=detail)
    else:
        bar.update(summary.verified, total=summary.finished, note=f"solved {summary.solved}")


def tell_summary(summary: RoundSummary, *, err: bool = False) -> None:
    """One line of what a round gave."""
    parts = [f"{summary.finished} of {summary.slots} trials finished"]
    if summary.verified:
        parts.append(f"solved {summary.solved} of {summary.verified} verified")
    for name in ("broken", "error"):
        if summary.outcomes.get(name):
            parts.append(f"{name} {summary.outcomes[name]}")
    if summary.empty:
        parts.append(f"{summary.empty} slots left empty by faults")
    click.echo("   ".join(parts), err=err)
