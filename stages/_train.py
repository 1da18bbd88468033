"""Training from a command: in a thread, so that leases stay renewed, and with progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lego.rollout.run import Run
from lego.rundb.rounds import Round
from stages._common import progress

if TYPE_CHECKING:
    from lego.trainer.advance import Outcome
    from lego.trainer.sft import SftProgress


async def train_with_progress(run: Run, round_: Round) -> Outcome:
    from lego.trainer.advance import train_round

    with progress("train", heading=f"training on round {round_.ordinal}") as bar:
        return await train_round(
            run.store, round_, run.config, run.policies_dir, lambda done, total: bar.update(done, total=total)
        )


async def teach_with_progress(run: Run, round_: Round) -> Outcome:
    from lego.trainer.advance import teach_round

    with progress("sft", heading="teaching from demonstrations") as bar:

        def show(state: SftProgress) -> None:
            bar.update(state.step, total=state.steps, note=f"loss {state.metrics['sft/loss']:.3f}")

        return await teach_round(run.store, round_, run.config, run.policies_dir, show)


def tell_outcome(outcome: Outcome, *, err: bool = False) -> None:
    """One line of what a step did, and one for what else there is to know of it."""
    metrics = outcome.metrics
    if outcome.status != "done" or outcome.policy is None:
        click.echo(f"step {outcome.step} {outcome.status}: {outcome.reason}", err=err)
        return
    named = (
        ("proof/correlation", "correlation", ".4f"),
        ("proof/mean_gap", "|dlogp|", ".1e"),
        ("step/grad_norm", "grad", ".3f"),
        ("sft/loss", "loss", ".3f"),
        ("step/tokens", "tokens", ".0f"),
    )
    shown = "   ".join(f"{label} {metrics[name]:{form}}" for name, label, form in named if name in metrics)
    click.echo(f"step {outcome.step} done: policy {outcome.policy.version}   {shown}", err=err)
    if outcome.note:
        click.echo(f"  {outcome.note}", err=err)
    covered = metrics.get("moe/coverage", 1.0)
    if covered < 1.0:
        click.echo(
            f"  of {1.0 - covered:.0%} of its tokens the experts were not recorded: the trainer chose its own, which"
            " moves log-probs more than rounding does (engine.routing=true records them; docs/scale.md)",
            err=err,
        )
