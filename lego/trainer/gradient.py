"""The gradient of one optimizer step, added up micro-batch by micro-batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lego.config.schema import TrainSection
from lego.engine.base import FloatArray
from lego.objective.advantages import trial_scales
from lego.objective.correction import correct
from lego.objective.losses import Mean, gspo, reference_kl
from lego.objective.recipes import recipe
from lego.trainer.batch import Batch, TrainSegment, pack
from lego.trainer.policy import Policy, memory_advice

Progress = Callable[[int, int], None]
"""Called with micro-batches done and in all."""


def score(
    policy: Policy,
    segments: Sequence[TrainSegment],
    temperature: float,
    micro_batch_tokens: int,
    on_progress: Progress | None = None,
) -> list[FloatArray]:
    """Log-probs (nats) of each segment's owned ids under `policy`: one [n] float32 a segment, 0 elsewhere."""
    scored = [np.zeros(len(segment.ids), dtype=np.float32) for segment in segments]
    batches = pack(segments, micro_batch_tokens)
    for done, batch in enumerate(batches, start=1):
        with memory_advice(), torch.no_grad():
            _scatter(scored, batch, _logprobs(policy, batch, temperature))
        if on_progress:
            on_progress(done, len(batches))
    return scored


class Gradient:
    """What a step on some segments pulls the weights towards, by the run's objective.

    longest: the most a trial may sample, for the weighting that divides by it.
    """

    def __init__(self, policy: Policy, section: TrainSection, temperature: float, longest: int) -> None:
        self.policy = policy
        self.section = section
        self.temperature = temperature
        self.longest = longest
        self.recipe = recipe(section.objective)

    def accumulate(
        self,
        segments: Sequence[TrainSegment],
        old: Sequence[FloatArray] | None = None,
        reference: Sequence[FloatArray] | None = None,
        on_progress: Progress | None = None,
    ) -> tuple[list[FloatArray], dict[str, Mean]]:
        """Add the gradient of these segments' loss to the weights'; returns their log-probs (one [n] a segment) and
        the metrics of the objective.

        old: log pi_old, one [n] a segment; None: pi_old is pi itself, so this very forward pass is the recomputation.
        reference: the same of the reference policy, where train.objective.kl asks for it.
        """
        bypass = self.section.correction.old == "bypass"
        if bypass:
            old = [segment.logprobs for segment in segments]
        scales = self._scales(segments)
        log_ratios = self._trial_ratios(segments, old)
        scored = [np.zeros(len(segment.ids), dtype=np.float32) for segment in segments]
        metrics: dict[str, Mean] = defaultdict(Mean)
        batches = self._by_use(segments)
        for done, (batch, learns) in enumerate(batches, start=1):
            with torch.set_grad_enabled(learns):
                logp = _logprobs(self.policy, batch, self.temperature)
            _scatter(scored, batch, logp)
            if learns:
                rows = batch.to(logp.device)
                logp_old = logp.detach() if old is None else _gather(old, batch).to(logp.device)
                factor = None
                if not bypass:  # there the ratio already is pi / mu
                    factor, corrected = correct(logp_old, rows.logprobs, rows.mask, self.section.correction)
                    _add(metrics, corrected)
                weight = rows.weight * _of(scales, segments, batch).to(logp.device)
                own = None if log_ratios is None else _of(log_ratios, segments, batch).to(logp.device)
                loss = self._loss(logp, logp_old, rows, weight, factor, own, metrics)
                if reference is not None:
                    held = reference_kl(logp, _gather(reference, batch).to(logp.device), rows.mask, weight)
                    loss = loss + self.section.objective.kl * held.loss
                    _add(metrics, held.metrics)
                loss.backward()  # type: ignore[no-untyped-call]
                _add(metrics, {"step/loss": Mean(float(loss.detach()), 0.0)})
                _add(metrics, {"step/surprise": Mean(-float(logp.detach()[rows.mask].sum()), float(rows.mask.sum()))})
            if on_progress:
                on_progress(done, len(batches))
        metrics["step/loss"] = Mean(metrics["step/loss"].total, 1)
        return scored, metrics

    def _loss(
        self,
        logp: Tensor,
        logp_old: Tensor,
        rows: Batch,
        weight: Tensor,
        factor: Tensor | None,
        log_ratio: Tensor | None,
        metrics: dict[str, Mean],
    ) -> Tensor:
        clip, loss = self.recipe.clip, self.recipe.loss
        if log_ratio is not None:
            result = gspo(logp, logp_old, rows.mask, rows.advantage, weight, clip, factor, log_ratio)
        else:
            result = loss(logp, logp_old, rows.mask, rows.advantage, weight, clip, factor)
        _add(metrics, result.metrics)
        return result.loss

    def _scales(self, segments: Sequence[TrainSegment]) -> dict[int, float]:
        owned: Counter[int] = Counter()
        for segment in segments:
            owned[segment.trial_id] += int(segment.mask.sum())
        return trial_scales(owned, self.recipe.weighting, self.longest)

    def _trial_ratios(
        self, segments: Sequence[TrainSegment], old: Sequence[FloatArray] | None
    ) -> dict[int, float] | None:
        """Trial -> mean over all its tokens of log pi - log pi_old, by a forward pass of its own."""
        if self.recipe.loss is not gspo or self.section.objective.ratio != "trial":
            return None
        if old is None:
            return {segment.trial_id: 0.0 for segment in segments}
        now = score(self.policy, segments, self.temperature, self.section.micro_batch_tokens)
        sums: dict[int, Mean] = defaultdict(Mean)
        for segment, new, before in zip(segments, now, old, strict=True):
            delta = (new.astype(np.float64) - before)[segment.mask]
            sums[segment.trial_id] = sums[segment.trial_id].plus(Mean(float(delta.sum()), delta.size))
        return {trial: mean.value for trial, mean in sums.items()}

    def _by_use(self, segments: Sequence[TrainSegment]) -> list[tuple[Batch, bool]]:
        """Micro-batches, and whether each has a gradient: with no advantage a segment is only scored, for the proof."""
        held = self.section.objective.kl > 0
        packed: list[tuple[Batch, bool]] = []
        for learns in (True, False):
            chosen = [i for i, segment in enumerate(segments) if (held or bool(segment.advantage)) is learns]
            for batch in pack([segments[i] for i in chosen], self.section.micro_batch_tokens):
                packed.append((replace(batch, index=tuple(chosen[i] for i in batch.index)), learns))
        return packed


def _logprobs(policy: Policy, batch: Batch, temperature: float) -> Tensor:
    return policy.logprobs(batch.ids.to(policy.device), batch.mask.to(policy.device), temperature)


def _of(values: Mapping[int, float], segments: Sequence[TrainSegment], batch: Batch) -> Tensor:
    """[segments] float32: each row's value, by its trial."""
    return torch.tensor([values[segments[i].trial_id] for i in batch.index], dtype=torch.float32)


def _add(into: dict[str, Mean], metrics: Mapping[str, Mean]) -> None:
    for name, mean in metrics.items():
        into[name] = into[name].plus(mean)


def _scatter(into: list[FloatArray], batch: Batch, logp: Tensor) -> None:
    rows = logp.detach().float().cpu().numpy()
    for row, index in zip(rows, batch.index, strict=True):
        n = min(len(row), len(into[index]))
        into[index][:n] = row[:n]


def _gather(rows: Sequence[FloatArray], batch: Batch) -> Tensor:
    grid = torch.zeros(batch.ids.shape, dtype=torch.float32)
    for place, index in enumerate(batch.index):
        n = min(grid.shape[1], len(rows[index]))
        grid[place, :n] = torch.from_numpy(rows[index][:n])
    return grid
