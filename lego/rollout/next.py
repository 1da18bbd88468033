"""Which round a command works on: the open one, or the next."""

from __future__ import annotations

from lego.errors import TrainerError
from lego.policy import PolicyRef
from lego.rollout.run import Run
from lego.rollout.settings import begin_round, settings_for
from lego.rundb import rounds, training
from lego.rundb.rounds import Round


def train_round_now(run: Run) -> Round:
    """The open training round, or, when the last one is closed, the next with the newest policy.

    Raises TrainerError while `lego sft` teaches: the round's trials would be of the policy before.
    """
    with run.store.write():
        last = rounds.latest(run.store, "train")
        if last is not None and last.open:
            return last
        if training.being_taught(run.store):
            raise TrainerError(
                "lego sft is teaching, and a round must be sampled from what comes of it",
                hint="wait for it, or end it",
                fault="user",
            )
        return begin_round(run, "train", run.newest_policy(), last.ordinal + 1 if last else 1)


def demo_round_now(run: Run) -> Round:
    """The open round of demonstrations, or the next."""
    last = rounds.latest(run.store, "demo")
    if last is not None and last.open:
        return last
    return begin_round(run, "demo", run.newest_policy(), last.ordinal + 1 if last else 1)


def eval_round_of(run: Run, policy: PolicyRef, *, again: bool = False) -> Round:
    """The evaluation of a policy under the present settings: the one begun or done before, or a new one."""
    wanted = settings_for(run.config, "eval").as_dict()
    # One transaction: another process that evaluates another policy at this moment must not get the same ordinal.
    with run.store.write():
        all_evals = [round_ for round_ in rounds.all_rounds(run.store) if round_.kind == "eval"]
        same = [round_ for round_ in all_evals if round_.policy_version == policy.version and round_.settings == wanted]
        if same and (same[-1].open or not again):
            return same[-1]
        return begin_round(run, "eval", policy, len(all_evals) + 1)
