"""`lego verify`: verdicts for what the trials left; the oracle check; verification again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import ConfigError, GateError, VerifierError
from stages._common import config_options, print_json, progress

if TYPE_CHECKING:
    from collections.abc import Collection

    from lego.config.load import Loaded
    from lego.rollout.again import Again
    from lego.rollout.site import Workshop
    from lego.rollout.stopping import Stop


@click.command()
@click.option("--oracle", is_flag=True, help="Check every task: nothing done must fail, the solution must pass, twice.")
@click.option("--again", is_flag=True, help="Verify stored submissions of every round once more; list what changed.")
@click.option(
    "--round", "chosen", type=int, multiple=True, metavar="N", help="With --again: only rounds N; may be repeated."
)
@config_options
def command(loaded: Loaded, as_json: bool, oracle: bool, again: bool, chosen: tuple[int, ...]) -> None:
    """Grade what the trials left, each in a fresh container that the agent never saw."""
    if oracle and again:
        raise click.UsageError("--oracle and --again are two different checks; give one")
    if chosen and not again:
        raise click.UsageError("--round goes with --again")
    if again:
        uvloop.run(_again(loaded, as_json, chosen))
    else:
        uvloop.run((check_oracle if oracle else _verify)(loaded, as_json))


async def _verify(loaded: Loaded, as_json: bool) -> None:
    from lego.rundb import rounds, verdicts
    from lego.rundb.summary import summarise
    from stages._round import run_round, tell_summary
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        open_rounds = [round_ for round_ in rounds.all_rounds(run.store) if round_.open]
        if not open_rounds:
            click.echo("no round is open: nothing to verify (lego rollout begins one)", err=True)
        for round_ in open_rounds:
            if verdicts.waiting(run.store, round_.id):
                await _ready(workshop, {task for task, _ in rounds.tasks_of(run.store, round_.id)}, stop)
            await run_round(workshop, round_, stop, trials_too=False)
        if as_json:
            print_json([{"kind": r.kind, "round": r.ordinal, **asdict(summarise(run.store, r))} for r in open_rounds])
        else:
            for round_ in open_rounds:
                tell_summary(summarise(run.store, round_))


async def check_oracle(loaded: Loaded, as_json: bool) -> None:
    """Every task, twice: empty must fail, gold must pass. Raises GateError naming the tasks where they do not, and
    VerifierError where infrastructure kept some from being checked."""
    from lego.rollout.baselines import check_tasks
    from lego.rollout.health import likely_cause
    from stages._building import build_with_progress, refuse_failed
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        tasks = list(run.tasks.values())
        building = build_with_progress(lambda on_event: workshop.build_images(tasks, [], on_event))
        refuse_failed(await stop.or_abandon(building) or [])
        if stop.asked.is_set():
            return
        with progress("tasks", len(tasks), heading=f"oracle check of {len(tasks)} tasks, each twice") as bar:
            checks = check_tasks(workshop, tasks, lambda result: bar.advance(detail=result.line()))
            results = await stop.or_abandon(checks) or []
        if stop.asked.is_set():
            return
        if as_json:
            print_json([asdict(result) for result in results])
        else:
            for result in results:
                if not result.good or result.copies:
                    click.echo(result.line())
            good = sum(result.good for result in results)
            click.echo(f"{good} of {len(tasks)} tasks pass with the solution and fail with nothing done, twice")
    unknown = [result.why for result in results if result.infra]
    bad = sum(not result.good for result in results) - len(unknown)
    if bad:
        raise GateError(
            f"{bad} {'task does' if bad == 1 else 'tasks do'} not tell solved from unsolved",
            hint="lego verify --oracle --json has the ends of their logs",
        )
    if unknown:
        raise VerifierError(
            f"{len(unknown)} of {len(results)} tasks could not be checked: infrastructure failed each attempt",
            hint=likely_cause(unknown),
        )


async def _again(loaded: Loaded, as_json: bool, chosen: tuple[int, ...]) -> None:
    """Raises VerifierError where some could not be verified again."""
    from lego.rollout.again import Again, verify_again
    from lego.rundb import rounds, verdicts
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        wanted = [round_ for round_ in rounds.all_rounds(run.store) if not chosen or round_.ordinal in chosen]
        if missing := set(chosen) - {round_.ordinal for round_ in wanted}:
            raise ConfigError(f"--round: this run has no round {min(missing)}", hint="lego status lists them")
        rows = [row for round_ in wanted for row in verdicts.finished(run.store, round_.id)]
        await _ready(workshop, {row["task_id"] for row in rows}, stop)
        again = Again()
        try:
            with progress("verdicts", len(rows), heading=f"verifying {len(wanted)} rounds again") as bar:
                await stop.or_abandon(verify_again(workshop, [row["id"] for row in rows], again, bar.advance))
        finally:
            _tell_again(again, as_json)
    if again.kept:
        raise VerifierError(
            f"{len(again.kept)} of {again.verified + len(again.kept)} trials could not be verified again",
            hint="their earlier verdicts stay as they were; run the command again",
        )


def _tell_again(again: Again, as_json: bool) -> None:
    again.changed.sort(key=lambda change: change.trial)
    if as_json:
        print_json(asdict(again))
        return
    for change in again.changed:
        click.echo(f"trial {change.trial} {change.task}: {change.before} -> {change.now}")
    for trial, why in sorted(again.kept.items()):
        click.echo(f"trial {trial} keeps its verdict, as it could not be verified again: {why}")
    click.echo(f"{len(again.changed)} of {again.verified} verdicts changed")


async def _ready(workshop: Workshop, tasks: Collection[str], stop: Stop) -> None:
    """Build what is missing of the images that these tasks are verified in; what does not build shows where it is
    needed."""
    from stages._building import build_with_progress

    known = [task for name, task in workshop.run.tasks.items() if name in tasks]
    if known:
        await stop.or_abandon(build_with_progress(lambda on_event: workshop.build_images(known, [], on_event)))
