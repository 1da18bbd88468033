"""`lego train`: a finished, verified round becomes a step and the next policy."""

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
@click.option("--give-up", is_flag=True, help="Close the open round, whose step was refused, without a step.")
@config_options
def command(loaded: Loaded, as_json: bool, give_up: bool) -> None:
    """Train on the open round, once its trials are run and verified, and close it.

    Refuses (exit code 4) when the trainer cannot reproduce the log-probs of the rollouts. The round stays open then:
    the same command takes the step again, with a wider train.gate for instance.
    """
    uvloop.run(_train(loaded, as_json, give_up))


async def _train(loaded: Loaded, as_json: bool, give_up: bool) -> None:
    from lego.rollout.refill import shortage
    from lego.rollout.run import open_run
    from lego.rollout.scheduler import leases_renewed
    from lego.rundb import rounds
    from lego.rundb.paths import run_db
    from stages._train import tell_outcome, train_with_progress

    begun = run_db(loaded.config.run.dir, loaded.config.run.name).exists()
    run = open_run(loaded) if begun else None
    round_ = rounds.latest(run.store, "train") if run else None
    if run is None or round_ is None or not round_.open:
        raise TrainerError(
            "no round is open: there is nothing to train on", hint="lego rollout begins one", fault="user"
        )
    if give_up:
        from lego.trainer import advance

        outcome = advance.give_up(run.store, round_, run.config)
    elif lacking := shortage(run, round_):
        raise TrainerError(
            f"round {round_.ordinal} is to be refilled: {lacking}",
            hint="lego rollout adds other tasks; or train on what there is, with rollout.refill=0",
            fault="user",
        )
    else:
        async with leases_renewed(run.store):
            outcome = await train_with_progress(run, round_)
    if as_json:
        print_json(asdict(outcome))
    else:
        tell_outcome(outcome)
