"""The name, unit and definition of every metric, once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """unit: as written after the number ("" for a pure number). better: which way is good, or "" where neither is."""

    name: str
    unit: str
    definition: str
    better: str = ""


_ALL = (
    # The proof that what is trained is what was sampled (lego.objective.proof.Proof).
    Metric("proof/correlation", "", "Pearson correlation of the trainer's and the engine's token probabilities", "up"),
    Metric("proof/spread", "", "standard deviation of the engine's token probabilities"),
    Metric("proof/mean_gap", "nats", "mean |log p_train - log p_engine| over sampled tokens", "down"),
    Metric("proof/max_gap", "nats", "max |log p_train - log p_engine| over sampled tokens", "down"),
    Metric("proof/k3", "nats", "mean of e^d - 1 - d, d = log p_train - log p_engine: KL(engine || trainer)", "down"),
    Metric("proof/ess", "", "effective sample size over sample size of the weights p_train / p_engine", "up"),
    Metric("proof/chi2", "", "mean of (p_train / p_engine)^2, less 1: chi-square divergence", "down"),
    Metric("proof/kl", "nats", "mean of log p_engine - log p_train: the plain estimate of KL(engine || trainer)"),
    Metric("proof/ppl_ratio", "", "perplexity of the sampled tokens under the trainer over that under the engine"),
    Metric("proof/sequence_ess", "", "as proof/ess, over segments, each weighing the product of its tokens", "up"),
    Metric("proof/sequence_chi2", "", "as proof/chi2, over segments", "down"),
    Metric("proof/tokens", "tokens", "sampled tokens the proof is over"),
    # The objective.
    Metric(
        "ratio/mean",
        "",
        "mean importance ratio pi / pi_old where there is an advantage: over segments (gspo) or tokens",
    ),
    Metric("ratio/clipped", "", "fraction of those ratios whose gradient the clip takes away (cispo: cuts)"),
    Metric("ratio/k3", "nats", "mean of e^d - 1 - d over those tokens, d = log pi - log pi_old: KL(pi_old || pi)"),
    Metric("correction/weight", "", "mean factor of a sampled token for pi_old / p_engine not being 1"),
    Metric(
        "correction/capped", "", "fraction of sampled tokens whose pi_old / p_engine met a bound of train.correction"
    ),
    Metric("correction/masked", "", "fraction of sampled tokens that train.correction leaves out"),
    Metric("correction/vetoed", "", "fraction of segments that train.correction.veto leaves out"),
    Metric("kl/reference", "nats", "k3 estimate, over tokens, of KL(pi || the policy that the learning began from)"),
    Metric("group/graded", "groups", "groups with at least two graded members"),
    Metric("group/flat", "groups", "of those, groups whose rewards are all equal: no advantage"),
    Metric("group/skipped", "groups", "groups with fewer than two graded members: left out"),
    Metric("reward/mean", "", "mean reward of the trials that enter a group's statistics", "up"),
    Metric("reward/std", "", "standard deviation (ddof 1) of those trials' rewards"),
    # One train step.
    Metric("step/loss", "", "the objective minimised, before the update"),
    Metric("step/surprise", "nats", "mean -log pi of the sampled tokens, before the update: estimates the entropy"),
    Metric(
        "step/entropy", "nats", "mean entropy of the trained tokens' distributions; where train.objective.entropy is on"
    ),
    Metric(
        "step/shared", "", "fraction of the segments' tokens that were computed as part of another segment's prefix"
    ),
    Metric("moe/coverage", "", "fraction of the sampled tokens whose recorded experts the trainer replays"),
    Metric("moe/balance", "", "load-balancing loss of a mixture of experts; 1 is even. Where train.moe.balance is on"),
    Metric("step/grad_norm", "", "2-norm of the gradient before clipping, mean over mini-batches"),
    Metric("step/lr", "", "learning rate of the step"),
    Metric("step/updates", "", "optimizer steps: train.minibatches, less those in which no trial has an advantage"),
    Metric("step/segments", "segments", "segments given to the step"),
    Metric("step/trials", "trials", "trials those segments are of"),
    Metric("step/tokens", "tokens", "sampled tokens those segments own"),
    Metric("step/seconds", "s", "wall clock of the step, recomputation and proof included"),
    Metric("step/tokens_per_second", "tokens/s", "owned tokens trained on a second", "up"),
    Metric(
        "step/dropped",
        "samples",
        "segments, or trials as a whole, left out of the step, each with its reason in samples.dropped",
    ),  # fmt: skip
    # The supervised start.
    Metric("sft/loss", "nats", "mean cross-entropy of a demonstrated token", "down"),
    Metric("sft/held_out", "nats", "the same over the demonstrations held out, after the epoch kept", "down"),
    Metric("sft/epoch", "", "the epoch whose weights were kept, from 1"),
    # Evaluation (lego.evaluation).
    Metric("eval/pass@1", "", "mean over held-out tasks of the fraction of trials that solve the task", "up"),
    Metric("eval/low", "", "lower end of its 95 % Wilson interval"),
    Metric("eval/high", "", "upper end of its 95 % Wilson interval"),
    # Rollout.
    Metric("rollout/trials", "trials", "trials finished in the round"),
    Metric("rollout/infra_faults", "attempts", "attempts of the round that an infrastructure fault ended", "down"),
    Metric("rollout/turns", "calls", "mean model calls a finished trial made"),
    Metric("rollout/sampled_tokens", "tokens", "tokens sampled in the round"),
    Metric("rollout/tokens_per_second", "tokens/s", "sampled tokens over the round's wall clock", "up"),
    Metric("rollout/trials_per_minute", "trials/min", "finished trials over the round's wall clock", "up"),
    Metric("rollout/truncated", "trials", "trials ended by a cap: turns, tokens, context or time"),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric lego records, by name."""
