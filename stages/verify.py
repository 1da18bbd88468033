"""`lego verify`: verdicts for what the trials left; the oracle check; verification again."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

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
    work = _oracle if oracle else _again if again else _verify
    asyncio.run(work(loaded, as_json))


async def _verify(loaded: Loaded, as_json: bool) -> None:
    from lego.rollout.run import open_run
    from lego.rollout.scheduler import leases_renewed
    from lego.rollout.site import open_workshop
    from lego.rollout.stopping import stop_on_signals
    from lego.rundb import rounds
    from lego.rundb.summary import summarise
    from stages._round import run_round, tell_summary

    run = open_run(loaded)
    open_rounds = [round_ for round_ in rounds.all_rounds(run.store) if round_.open]
    if not open_rounds:
        click.echo("no round is open: nothing to verify (lego rollout begins one)", err=True)
        return
    async with open_workshop(run) as workshop, stop_on_signals(lambda text: click.echo(text, err=True)) as stop:
        async with leases_renewed(run.store):
            for round_ in open_rounds:
                await run_round(workshop, round_, stop, trials_too=False)
    if as_json:
        print_json([{"kind": r.kind, "round": r.ordinal, **asdict(summarise(run.store, r))} for r in open_rounds])
    else:
        for round_ in open_rounds:
            tell_summary(summarise(run.store, round_))
    if stop.asked.is_set():
        raise click.Abort


async def _oracle(loaded: Loaded, as_json: bool) -> None:
    """Every task, twice: empty must fail, gold must pass. Raises GateError naming the tasks where they do not."""
    from lego.rollout.baselines import check_tasks
    from lego.rollout.run import open_run
    from lego.rollout.site import open_workshop
    from lego.rollout.stopping import stop_on_signals
    from stages._round import build_with_progress

    run = open_run(loaded)
    tasks = list(run.tasks.values())
    async with open_workshop(run) as workshop, stop_on_signals(lambda text: click.echo(text, err=True)) as stop:
        await build_with_progress(lambda on_event: workshop.build_images(tasks, [], on_event))
        with progress("tasks", len(tasks), heading=f"oracle check of {len(tasks)} tasks, each twice") as bar:
            results = await check_tasks(workshop, tasks, stop, lambda result: bar.advance(detail=result.line()))
    bad = [result for result in results if not result.good]
    if as_json:
        print_json([asdict(result) for result in results])
    else:
        for result in bad:
            click.echo(result.line())
        click.echo(
            f"{len(results) - len(bad)} of {len(tasks)} tasks pass with the solution and fail with nothing done, twice"
        )
    if stop.asked.is_set():
        raise click.Abort
    if bad:
        raise GateError(
            f"{len(bad)} tasks do not tell solved from unsolved",
            hint="lego verify --oracle --json has their logs' ends",
        )


async def _again(loaded: Loaded, as_json: bool) -> None:
    from lego.rollout.run import open_run
    from lego.rollout.site import open_workshop
    from lego.rollout.stopping import stop_on_signals
    from lego.rollout.verification import record_verdict, verify_candidate
    from lego.rundb import rounds, verdicts
    from lego.sandbox.submission import Submission

    run = open_run(loaded)
    round_ = rounds.latest(run.store, "train") or rounds.latest(run.store, "eval")
    if round_ is None:
        raise click.UsageError("there is no round yet: nothing to verify again")
    rows = verdicts.finished(run.store, round_.id)
    changed: list[dict[str, Any]] = []
    async with open_workshop(run) as workshop, stop_on_signals(lambda text: click.echo(text, err=True)) as stop:
        gate = asyncio.Semaphore(run.config.verify.concurrency)
        with progress("verdicts", len(rows), heading=f"verifying {round_.kind} round {round_.ordinal} again") as bar:

            async def one(row: dict[str, Any]) -> None:
                async with gate:
                    if stop.asked.is_set():
                        return
                    before = verdicts.latest(run.store, row["id"])
                    verdict = await verify_candidate(
                        Submission.from_bytes(row["submission"]), run.tasks[row["task_id"]], workshop
                    )
                    record_verdict(row["id"], verdict, workshop, leased=False)
                    if before and (before["reward"], before["outcome"]) != (verdict.reward, verdict.outcome):
                        changed.append(
                            {
                                "trial": row["id"],
                                "task": row["task_id"],
                                "before": [before["outcome"], before["reward"]],
                                "now": [verdict.outcome, verdict.reward],
                            }
                        )
                    bar.advance()

            async with asyncio.TaskGroup() as group:
                for row in rows:
                    group.create_task(one(row))
    if as_json:
        print_json(changed)
    else:
        for entry in changed:
            click.echo(f"trial {entry['trial']} {entry['task']}: {entry['before']} -> {entry['now']}")
        click.echo(f"{len(changed)} of {len(rows)} verdicts changed")
    if stop.asked.is_set():
        raise click.Abort
