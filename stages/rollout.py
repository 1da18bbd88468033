"""`lego rollout`: the trials of the open round."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import uvloop

from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@config_options
def command(loaded: Loaded, as_json: bool) -> None:
    """Run the trials of the open round; open the next round if the last one is closed.

    With rollout.refill, a verified round that lacks groups with spread is given other tasks.

    Several `lego rollout` on one run share the work. Ctrl-C once finishes what runs; twice gives it back.
    """
    uvloop.run(_rollout(loaded, as_json))


async def _rollout(loaded: Loaded, as_json: bool) -> None:
    from lego.rollout.next import train_round_now
    from stages._round import refilled, run_round, tell_summary
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        round_ = train_round_now(run)
        refilled(run, round_)
        summary = await run_round(workshop, round_, stop, verify_too=False)
        if as_json:
            print_json({"round": round_.ordinal, "policy": round_.policy_version, **asdict(summary)})
        else:
            tell_summary(summary)
            if summary.unverified:
                click.echo("next: lego verify")
