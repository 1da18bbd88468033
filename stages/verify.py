"""`lego verify`: verdicts for what the trials left; the oracle check; verification again."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import GateError
from stages._common import config_options, print_json, progress

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option("--oracle", is_flag=True, help="Check every task: nothing done must fail, the solution must pass, twice.")
@click.option("--again", is_flag=True, help="Verify the latest round's submissions once more; list what changed.")
@config_options
def command(loaded: Loaded, as_json: bool, oracle: bool, again: bool) -> None:
    """Grade what the trials left, each in a fresh container that the agent never saw."""
    if oracle and again:
        raise click.UsageError("--oracle and --again are two different checks; give one")
    work = check_oracle if oracle else _again if again else _verify
    uvloop.run(work(loaded, as_json))


async def _verify(loaded: Loaded, as_json: bool) -> None:
    from lego.rundb import rounds
    from lego.rundb.summary import summarise
    from stages._round import run_round, tell_summary
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        open_rounds = [round_ for round_ in rounds.all_rounds(run.store) if round_.open]
        if not open_rounds:
            click.echo("no round is open: nothing to verify (lego rollout begins one)", err=True)
        for round_ in open_rounds:
            await run_round(workshop, round_, stop, trials_too=False)
        if as_json:
            print_json([{"kind": r.kind, "round": r.ordinal, **asdict(summarise(run.store, r))} for r in open_rounds])
        else:
            for round_ in open_rounds:
                tell_summary(summarise(run.store, round_))


async def check_oracle(loaded: Loaded, as_json: bool) -> None:
    """Every task, twice: empty must fail, gold must pass. Raises GateError naming the tasks where they do not."""
    from lego.rollout.baselines import check_tasks
    from stages._building import build_with_progress
    from stages._run import at_work

    bad = []
    async with at_work(loaded) as (run, workshop, stop):
        tasks = list(run.tasks.values())
        await stop.or_abandon(build_with_progress(lambda on_event: workshop.build_images(tasks, [], on_event)))
        if stop.asked.is_set():
            return
        with progress("tasks", len(tasks), heading=f"oracle check of {len(tasks)} tasks, each twice") as bar:
            checks = check_tasks(workshop, tasks, lambda result: bar.advance(detail=result.line()))
            results = await stop.or_abandon(checks) or []
        if stop.asked.is_set():
            return
        bad = [result for result in results if not result.good]
        if as_json:
            print_json([asdict(result) for result in results])
        else:
            for result in bad:
                click.echo(result.line())
            good = len(results) - len(bad)
            click.echo(f"{good} of {len(tasks)} tasks pass with the solution and fail with nothing done, twice")
    if bad:
        raise GateError(
            f"{len(bad)} tasks do not tell solved from unsolved",
            hint="lego verify --oracle --json has the ends of their logs",
        )


async def _again(loaded: Loaded, as_json: bool) -> None:
    from lego.rollout.again import verify_again
    from lego.rundb import rounds, verdicts
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        round_ = rounds.latest(run.store, "train") or rounds.latest(run.store, "eval")
        rows = verdicts.finished(run.store, round_.id) if round_ else []
        with progress("verdicts", len(rows), heading="verifying the latest round again") as bar:
            changed = await stop.or_abandon(verify_again(workshop, rows, bar.advance)) or []
        if stop.asked.is_set():
            return
        if as_json:
            print_json([asdict(change) for change in changed])
        else:
            for change in changed:
                click.echo(f"trial {change.trial} {change.task}: {change.before} -> {change.now}")
            click.echo(f"{len(changed)} of {len(rows)} verdicts changed")
