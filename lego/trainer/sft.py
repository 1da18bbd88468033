"""The supervised start: cross-entropy on the sampled-token masks of scripted, oracle or successful trials."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lego.config.schema import SftSection
from lego.errors import TrainerError
from lego.objective.losses import Mean, cross_entropy
from lego.trainer.batch import TrainSegment, check, pack
from lego.trainer.optimizer import Optimizer
from lego.trainer.policy import memory_advice
from lego.trainer.step import Trainer, hash_seed


@dataclass(frozen=True)
class SftProgress:
    """step of steps (from 1), and that step's metrics by name (lego.metrics)."""

    step: int
    steps: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class SftReport:
    """metrics: of the last epoch, plus totals. losses: mean nats a token, one an epoch."""

    metrics: dict[str, float]
    losses: list[float]


def run_sft(
    trainer: Trainer,
    segments: Sequence[TrainSegment],
    section: SftSection,
    on_progress: Callable[[SftProgress], None] | None = None,
) -> SftReport:
    """Teach the trainer's policy the segments' masked tokens: `epochs` passes, `batch_trials` whole trials a step.

    Uses an optimizer of its own (section.optimizer), so save the result with `optimizer=False`. Order by the
    trainer's seed. Advantage, weight and engine log-probs play no part; the loss is at temperature 1.
    Raises TrainerError where there is nothing to learn from, or a gradient is not finite.
    """
    if not segments:
        raise TrainerError("there is nothing to learn from", hint="run the demonstrations first", fault="user")
    check(segments, trainer.policy.vocabulary)
    started = time.perf_counter()
    optimizer = Optimizer(trainer.policy.model, section.optimizer)
    trials = sorted({segment.trial_id for segment in segments})
    per_epoch = math.ceil(len(trials) / section.batch_trials)
    losses: list[float] = []
    last: dict[str, Mean] = {}
    for epoch in range(section.epochs):
        order = np.random.default_rng(hash_seed(trainer.seed, epoch)).permutation(len(trials))
        last = defaultdict(Mean)
        for number in range(per_epoch):
            first = number * section.batch_trials
            chosen = {trials[int(i)] for i in order[first : first + section.batch_trials]}
            batch = [segment for segment in segments if segment.trial_id in chosen]
            with memory_advice():
                metrics = sft_step(trainer, optimizer, batch)
            for name, mean in metrics.items():
                last[name] = last[name].plus(mean)
            if on_progress:
                values = {name: mean.value for name, mean in metrics.items()}
                on_progress(SftProgress(epoch * per_epoch + number + 1, section.epochs * per_epoch, values))
        losses.append(last["sft/loss"].value)
    seconds = time.perf_counter() - started
    tokens = sum(int(segment.mask.sum()) for segment in segments)
    totals = {
        "step/segments": float(len(segments)),
        "step/trials": float(len(trials)),
        "step/tokens": float(tokens),
        "step/seconds": seconds,
        "step/tokens_per_second": tokens * section.epochs / seconds,
    }
    return SftReport({name: mean.value for name, mean in last.items()} | totals, losses)


def sft_step(trainer: Trainer, optimizer: Optimizer, segments: Sequence[TrainSegment]) -> dict[str, Mean]:
    """One optimizer step on the mean cross-entropy over all owned tokens of `segments`."""
    tokens = sum(int(segment.mask.sum()) for segment in segments)
    policy = trainer.policy
    optimizer.forget()
    total = Mean()
    for batch in pack(segments, trainer.section.micro_batch_tokens):
        mask = batch.mask.to(policy.device)
        result = cross_entropy(policy.logprobs(batch.ids.to(policy.device), mask, 1.0), mask)
        (result.loss / tokens).backward()  # type: ignore[no-untyped-call]
        total = total.plus(result.metrics["sft/loss"])
    lr, norm = optimizer.lr, optimizer.clip()
    if not math.isfinite(norm):
        optimizer.forget()
        raise TrainerError("the gradient is not finite", hint="lower sft.optimizer.lr")
    optimizer.step()
    return {"sft/loss": total, "step/grad_norm": Mean(norm, 1), "step/lr": Mean(lr, 1)}
