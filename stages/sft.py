"""`lego sft`: a supervised start from demonstrations, run through real sandboxes with the same data path and masks."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import TrainerError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option("--again", is_flag=True, help="Teach once more, although demonstrations were learnt already.")
@config_options
def command(loaded: Loaded, as_json: bool, again: bool) -> None:
    """Run scripted demonstrations in sandboxes and teach the policy their tokens; the result is the next policy."""
    uvloop.run(_sft(loaded, as_json, again))


async def _sft(loaded: Loaded, as_json: bool, again: bool) -> None:
    from lego.rollout.next import demo_round_now
    from lego.rundb import rounds
    from stages._round import run_round, tell_summary
    from stages._run import at_work
    from stages._train import teach_with_progress, tell_outcome

    async with at_work(loaded) as (run, workshop, stop):
        last = rounds.latest(run.store, "demo")
        if last is not None and not last.open and not again:
            click.echo("demonstrations were learnt already; --again teaches once more", err=True)
            return
        begun = rounds.latest(run.store, "train")
        if begun is not None and begun.open:
            raise TrainerError(
                f"training round {begun.ordinal} is open, and its trials are of the policy as it is",
                hint="lego rollout, lego verify and lego train close it, or lego train --give-up",
                fault="user",
            )
        round_ = demo_round_now(run)
        summary = await run_round(workshop, round_, stop)
        tell_summary(summary, err=as_json)
        if stop.asked.is_set():
            return
        outcome = await stop.or_abandon(teach_with_progress(run, round_))
        if outcome is None:
            return
        if as_json:
            print_json(asdict(outcome))
        else:
            tell_outcome(outcome)
