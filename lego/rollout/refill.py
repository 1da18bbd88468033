"""Dynamic sampling (Yu et al. 2025, arXiv:2503.14476, section 3.2): other tasks for those that taught nothing.

A group whose members all got the same reward, or of which faults left fewer than two, has no advantage. Other tasks are
added to the round while it is open, of the same policy and under the same settings, until as many groups as the round
began with have spread, or the bound is met. What was added is rows like all others, so a killed command goes on.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from lego.objective.groups import with_spread
from lego.rollout.run import Run
from lego.rundb import meta, rounds, trials, verdicts
from lego.rundb.rounds import Round


@dataclass(frozen=True)
class Shortage:
    """have of wanted groups have spread; tasks: which to add, with their harness."""

    have: int
    wanted: int
    tasks: list[tuple[str, str]]

    def __str__(self) -> str:
        return f"{self.have} of {self.wanted} groups have spread"


def shortage(run: Run, round_: Round) -> Shortage | None:
    """What the round lacks and what may be added to it; None where it lacks nothing, nothing may be added
    (rollout.refill, or no task is left), or its trials and verdicts are not all there yet."""
    store, config, wanted = run.store, run.config, int(round_.settings["tasks"])
    if round_.kind != "train" or not wanted or not config.rollout.refill:
        return None
    left_to_do = trials.unfinished(store, round_.id) or verdicts.waiting(store, round_.id)
    if left_to_do or verdicts.being_verified(store, round_.id):
        return None
    ids, seed = run.trainable(), config.run.seed
    first = rounds.pick_tasks(ids, seed, round_.ordinal, wanted)
    held = {task for task, _ in rounds.tasks_of(store, round_.id)}
    others = [task for task in ids if task not in set(first)]
    random.Random(f"{seed}/{round_.ordinal}/refill").shuffle(others)
    have = len(with_spread(verdicts.graded(store, round_.id), config.verify.tamper, config.train.truncated))
    room = config.rollout.refill - (len(held) - len(first))
    chosen = [task for task in others if task not in held][: max(0, min(wanted - have, room))]
    if not chosen:
        return None
    return Shortage(have, wanted, [(task, run.harness_of(task, round_.ordinal)) for task in chosen])


def refill(run: Run, round_: Round) -> Shortage | None:
    """Add what the round lacks, with all its trials, in one transaction; what was added, or None.

    Where several workers share a round, one of them adds.
    """
    with run.store.write():
        lacking = shortage(run, round_)
        if lacking is None or not rounds.get(run.store, round_.id).open:
            return None
        rounds.add_tasks(run.store, round_.id, lacking.tasks, int(round_.settings["samples"]))
        names = ", ".join(task for task, _ in lacking.tasks)
        meta.event(run.store, "refill", f"round {round_.ordinal}: {lacking}; added {names}")
    return lacking
