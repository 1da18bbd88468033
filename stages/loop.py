"""`lego loop`: the circle, round after round, in one process with one warm engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import uvloop

from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rollout.run import Run
    from lego.rollout.site import Workshop
    from lego.rollout.stopping import Stop


@click.command()
@config_options
def command(loaded: Loaded, as_json: bool) -> None:
    """Roll out, verify and train until `loop.rounds` rounds are closed; evaluate on the way.

    The rows are those of the stages run by hand; killed at any moment, it goes on where it was.
    """
    uvloop.run(_loop(loaded, as_json))


async def _loop(loaded: Loaded, as_json: bool) -> None:
    from lego.rundb import training
    from stages._run import at_work

    async with at_work(loaded) as (run, workshop, stop):
        await _rounds(run, workshop, stop, as_json)
        if as_json:
            print_json({"steps": training.steps(run.store), "evals": training.evals(run.store)})


async def _rounds(run: Run, workshop: Workshop, stop: Stop, as_json: bool) -> None:
    from lego.rollout.next import train_round_now
    from lego.rundb import rounds, trials, verdicts
    from stages._round import refilled, run_round, tell_summary
    from stages._train import tell_outcome, train_with_progress

    wanted = run.config.loop.rounds
    while not stop.asked.is_set():
        last = rounds.latest(run.store, "train")
        closed = 0 if last is None else last.ordinal - last.open
        await _evaluate(run, workshop, stop, closed, wanted, as_json)
        if closed >= wanted or stop.asked.is_set():
            return
        round_ = train_round_now(run)
        summary = await run_round(workshop, round_, stop)
        while refilled(run, round_):
            summary = await run_round(workshop, round_, stop)
        if trials.unfinished(run.store, round_.id) or verdicts.waiting(run.store, round_.id):
            return
        tell_summary(summary, err=as_json)
        if not rounds.get(run.store, round_.id).open:
            continue  # another process that shared the round was the first to train on it
        outcome = await stop.or_abandon(train_with_progress(run, round_))
        if outcome is None:
            return
        tell_outcome(outcome, err=as_json)


async def _evaluate(run: Run, workshop: Workshop, stop: Stop, closed: int, wanted: int, as_json: bool) -> None:
    """Before the first round, after the last, and every `eval.every` between."""
    from lego.rollout.next import eval_round_of
    from stages._eval import evaluate, tell_eval

    every = run.config.eval.every
    due = closed in (0, wanted) or (every and closed % every == 0)
    if not due or not run.config.tasks.eval:
        return
    round_ = eval_round_of(run, run.newest_policy())
    was_open = round_.open
    result = await evaluate(workshop, round_, stop)
    if result and was_open:
        tell_eval(result, err=as_json)
