"""`lego sft`: a supervised start from demonstrations, run through real sandboxes with the same data path and masks."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option("--again", is_flag=True, help="Teach once more, although demonstrations were learnt already.")
@config_options
def command(loaded: Loaded, as_json: bool, again: bool) -> None:
    """Run scripted demonstrations in sandboxes and teach the policy their tokens; the result is the next policy."""
    asyncio.run(_sft(loaded, as_json, again))


async def _sft(loaded: Loaded, as_json: bool, again: bool) -> None:
    from lego.rollout.next import demo_round_now
    from lego.rollout.run import open_run
    from lego.rollout.scheduler import leases_renewed
    from lego.rollout.site import open_workshop
    from lego.rollout.stopping import stop_on_signals
    from lego.rundb import rounds
    from stages._round import run_round, tell_summary
    from stages._train import teach_with_progress, tell_outcome

    run = open_run(loaded)
    last = rounds.latest(run.store, "demo")
    if last is not None and not last.open and not again:
        click.echo(
            f"demonstrations were learnt already ({last.kind} round {last.ordinal}); --again teaches once more",
            err=True,
        )
        return
    round_ = demo_round_now(run)
    async with open_workshop(run) as workshop, stop_on_signals(lambda text: click.echo(text, err=True)) as stop:
        async with leases_renewed(run.store):
            summary = await run_round(workshop, round_, stop)
            if not as_json:
                tell_summary(summary)
            if stop.asked.is_set():
                raise click.Abort
            outcome = await teach_with_progress(run, round_)
    if as_json:
        print_json(asdict(outcome))
    else:
        tell_outcome(outcome)
