"""Evaluating a policy from a command: the round, then its row."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import click

from lego.evaluation import mean_pass_at_k, solve_rate
from lego.rollout.site import Workshop
from lego.rollout.stopping import Stop
from lego.rundb import rounds, training, trials, verdicts
from lego.rundb.rounds import Round
from stages._round import run_round


async def evaluate(workshop: Workshop, round_: Round, stop: Stop) -> dict[str, Any] | None:
    """Run (or finish) an evaluation round and record it; None when it was stopped before its end."""
    store = workshop.run.store
    if round_.open:
        await run_round(workshop, round_, stop)
        if trials.unfinished(store, round_.id) or verdicts.waiting(store, round_.id):
            return None
        _record(workshop, round_)
    return training.eval_of_round(store, round_.id)


def _record(workshop: Workshop, round_: Round) -> None:
    store = workshop.run.store
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for row in verdicts.graded(store, round_.id):
        if row["reward"] is not None:
            outcomes[row["task_id"]].append(bool(row["solved"]))
    rate = solve_rate(outcomes)
    counts = [(len(solved), sum(solved)) for solved in outcomes.values()]
    samples = int(round_.settings["samples"])
    detail = {
        "history": round_.settings["history"],
        "temperature": round_.settings["temperature"],
        "tasks": rate.tasks,
        "tasks_asked": len(rounds.tasks_of(store, round_.id)),
        "pass_at_k": {str(k): mean_pass_at_k(counts, k) for k in range(2, samples + 1)},
    }
    with store.write():
        training.record_eval(
            store,
            round_id=round_.id,
            policy_version=round_.policy_version,
            n=rate.trials,
            passed=sum(sum(solved) for solved in outcomes.values()),
            rate=rate.mean,
            low=rate.low,
            high=rate.high,
            detail=detail,
        )
        rounds.close_round(store, round_.id, "evaluated")


def tell_eval(result: dict[str, Any], *, err: bool = False) -> None:
    detail = result["detail"]
    click.echo(
        f"policy {result['policy_version']}   pass@1 {result['rate']:.3f} [{result['low']:.3f}-{result['high']:.3f}]   "
        f"{result['passed']} of {result['n']} trials, {detail['tasks']} of {detail['tasks_asked']} tasks   "
        f"T {detail['temperature']:g}, history {detail['history']}",
        err=err,
    )
