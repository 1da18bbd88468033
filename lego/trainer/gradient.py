"""The gradient of one optimizer step, added up micro-batch by micro-batch."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from lego.config.schema import ObjectiveSection, TrainSection
from lego.engine.base import FloatArray
from lego.objective.advantages import trial_scales
from lego.objective.correction import correct
from lego.objective.losses import Mean, entropy_bonus, gspo, reference_kl
from lego.objective.recipes import recipe
from lego.trainer.batch import Batch, TrainSegment, context, pack
from lego.trainer.policy import Policy, memory_advice

Progress = Callable[[int, int], None]
"""Called with micro-batches done and in all."""


def score(
    policy: Policy,
    segments: Sequence[TrainSegment],
    temperature: float,
    section: TrainSection,
    on_progress: Progress | None = None,
) -> list[FloatArray]:
    """Log-probs (nats) of each segment's owned ids under `policy`: one [n] float32 a segment, 0 elsewhere.

    Laid out as `Gradient.accumulate` lays the same segments out: to the last bit what it meets before the weights move.
    In bfloat16 another micro-batch is another rounding, larger than GSPO's clip range.
    """
    scored = [np.zeros(len(segment.ids), dtype=np.float32) for segment in segments]
    shares = _by_use(policy, section, segments)
    for done, (batch, _, counts) in enumerate(shares, start=1):
        with memory_advice(), torch.no_grad():
            logp = policy.score(batch.to(policy.device), temperature).logp
        if counts:
            _scatter(scored, segments, batch, logp)
        if on_progress:
            on_progress(done, len(shares))
    policy.ranks.collect(scored)
    return scored


@dataclass(frozen=True)
class Held:
    """What a step holds its segments' log-probs against.

    old: log pi_old, one [n] a segment; None: pi_old is pi itself, so that the step's own forward pass is the
    recomputation.  reference: the same of the reference policy, where train.objective.kl asks for it.
    scales: trial -> weight (lego.objective.advantages.trial_scales).  log_ratios: trial -> log ratio of all its
    tokens, where that and not its segments' is asked for.  tokens: owned ids of all segments that have a gradient.
    """

    old: Sequence[FloatArray] | None
    reference: Sequence[FloatArray] | None
    scales: Mapping[int, float]
    log_ratios: Mapping[int, float] | None
    tokens: int = 0


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
        self._bypass = section.correction.old == "bypass"

    def accumulate(
        self,
        segments: Sequence[TrainSegment],
        recorded: Sequence[FloatArray] | None = None,
        reference: Sequence[FloatArray] | None = None,
        on_progress: Progress | None = None,
    ) -> tuple[list[FloatArray], dict[str, Mean]]:
        """Add the gradient of these segments' loss to the weights'; returns their log-probs (one [n] a segment) and
        the metrics of the objective.

        segments: at least one with a gradient. recorded: log pi_old, where `score` took it before; segments without a
        gradient keep it, and are not run over again. reference: as in `Held`.
        """
        old = [segment.logprobs for segment in segments] if self._bypass else recorded
        everyone = pulls_alone(self.section.objective)
        tokens = sum(int(segment.mask.sum()) for segment in segments if everyone or segment.advantage)
        held = Held(old, reference, self._scales(segments), self._trial_ratios(segments, old), tokens)
        scored = [np.zeros(len(segment.ids), dtype=np.float32) for segment in segments]
        metrics: dict[str, Mean] = defaultdict(Mean)
        shares = [share for share in _by_use(self.policy, self.section, segments) if share[1] or recorded is None]
        for done, (batch, learns, counts) in enumerate(shares, start=1):
            measured: Mapping[str, Mean] = {}
            if learns:
                logp, loss, measured = self.loss(segments, batch, held)
                self.policy.backward(loss, counts)
            else:
                with torch.no_grad():
                    logp = self.policy.score(batch.to(self.policy.device), self.temperature).logp
            if counts:
                alone = sum(len(context(segments[i])) for i in batch.index)
                run_over = batch.ids.numel() if batch.runs else alone
                add_up(metrics, {**measured, "step/shared": Mean(alone - run_over, alone)})
                _scatter(scored, segments, batch, logp)
            if on_progress:
                on_progress(done, len(shares))
        self.policy.ranks.collect(scored)
        if recorded is not None:
            for row, before, segment in zip(scored, recorded, segments, strict=True):
                if not (everyone or segment.advantage):
                    row[:] = before
        metrics = self.policy.ranks.total(metrics)
        metrics["step/loss"] = Mean(metrics["step/loss"].total, 1)
        return scored, metrics

    def loss(
        self, segments: Sequence[TrainSegment], batch: Batch, held: Held
    ) -> tuple[Tensor, Tensor, dict[str, Mean]]:
        """One micro-batch's share of the loss: log-probs [segments, width], the scalar to differentiate, metrics.

        segments: the list that `batch` was packed from. The shares of all micro-batches add up to the step's loss.
        """
        section, rows = self.section, batch.to(self.policy.device)
        balanced = section.moe.balance > 0 and bool(self.policy.routers)
        scored = self.policy.score(rows, self.temperature, section.objective.entropy > 0, balanced)
        logp = scored.logp
        metrics: dict[str, Mean] = defaultdict(Mean)
        logp_old = logp.detach() if held.old is None else _gather(held.old, segments, batch).to(logp.device)
        factor, _ = self._correct(logp.detach() if self._bypass else logp_old, rows.logprobs, rows.mask)
        weight = rows.weight * _of(held.scales, segments, batch).to(logp.device)
        if held.log_ratios is not None:
            own = _of(held.log_ratios, segments, batch).to(logp.device)
            result = gspo(logp, logp_old, rows.mask, rows.advantage, weight, self.recipe.clip, factor, own)
        else:
            result = self.recipe.loss(logp, logp_old, rows.mask, rows.advantage, weight, self.recipe.clip, factor)
        add_up(metrics, result.metrics)
        loss = result.loss
        if held.reference is not None:
            near = reference_kl(logp, _gather(held.reference, segments, batch).to(logp.device), rows.mask, weight)
            loss = loss + section.objective.kl * near.loss
            add_up(metrics, near.metrics)
        if scored.entropy is not None:
            wide = entropy_bonus(scored.entropy, rows.mask, weight)
            loss = loss + section.objective.entropy * wide.loss
            add_up(metrics, wide.metrics)
        if scored.balance is not None:
            # Each micro-batch counts by the tokens it trains.
            here = float(rows.mask.sum())
            loss = loss + section.moe.balance * scored.balance * (here / held.tokens)
            add_up(metrics, {"moe/balance": Mean(float(scored.balance.detach()) * here, here)})
        add_up(metrics, {"step/loss": Mean(float(loss.detach()), 0.0)})
        return logp, loss, metrics

    def corrections(
        self, segments: Sequence[TrainSegment], scored: Sequence[FloatArray], recorded: Sequence[FloatArray] | None
    ) -> dict[str, Mean]:
        """What train.correction makes of all these segments, those without a gradient too: correction/*.

        scored, recorded: as `accumulate` returned and was given them.
        """
        metrics: dict[str, Mean] = defaultdict(Mean)
        for _, _, measured in self._corrected(segments, scored, recorded):
            add_up(metrics, measured)
        return metrics

    def pulls(
        self, segments: Sequence[TrainSegment], scored: Sequence[FloatArray], recorded: Sequence[FloatArray] | None
    ) -> bool:
        """Whether train.correction leaves anything to pull: a step on nothing would move the weights by their momentum.
        What is not finite pulls, to nowhere."""
        if pulls_alone(self.section.objective) or self.section.moe.balance:
            return True
        if not all(np.isfinite(row).all() for row in scored):
            return True
        corrected = self._corrected(segments, scored, recorded)
        return any(segment.advantage and bool(factor.any()) for segment, factor, _ in corrected)

    def _corrected(
        self, segments: Sequence[TrainSegment], scored: Sequence[FloatArray], recorded: Sequence[FloatArray] | None
    ) -> Iterator[tuple[TrainSegment, Tensor, dict[str, Mean]]]:
        """Each segment, the factors of its owned tokens and what is measured of them."""
        before = scored if recorded is None or self._bypass else recorded
        for segment, row in zip(segments, before, strict=True):
            owned, engine = (torch.from_numpy(values[segment.mask])[None] for values in (row, segment.logprobs))
            yield segment, *self._correct(owned, engine, torch.ones_like(owned, dtype=torch.bool))

    def _correct(self, logp_old: Tensor, logp_engine: Tensor, mask: Tensor) -> tuple[Tensor, dict[str, Mean]]:
        # A ratio to mu already is what a weight would be.
        weighs = not (self._bypass and self.recipe.has_ratio)
        return correct(logp_old, logp_engine, mask, self.section.correction, weighs=weighs)

    def _scales(self, segments: Sequence[TrainSegment]) -> dict[int, float]:
        owned: Counter[int] = Counter()
        for segment in segments:
            owned[segment.trial_id] += int(segment.mask.sum())
        counts = {segment.trial_id: segment.counts for segment in segments}
        return trial_scales(owned, self.recipe.weighting, self.longest, counts)

    def _trial_ratios(
        self, segments: Sequence[TrainSegment], old: Sequence[FloatArray] | None
    ) -> dict[int, float] | None:
        """Trial -> mean over all its tokens of log pi - log pi_old, by a forward pass of its own."""
        if self.recipe.loss is not gspo or self.section.objective.ratio != "trial":
            return None
        if old is None:
            return {segment.trial_id: 0.0 for segment in segments}
        now = score(self.policy, segments, self.temperature, self.section)
        sums: dict[int, Mean] = defaultdict(Mean)
        for segment, new, before in zip(segments, now, old, strict=True):
            delta = (new.astype(np.float64) - before)[segment.mask]
            sums[segment.trial_id] = sums[segment.trial_id].plus(Mean(float(delta.sum()), delta.size))
        return {trial: mean.value for trial, mean in sums.items()}


def _by_use(policy: Policy, section: TrainSection, segments: Sequence[TrainSegment]) -> list[tuple[Batch, bool, bool]]:
    """This process's micro-batches; whether each has a gradient (with no advantage a segment is only scored, for the
    proof), and whether it counts (lego.trainer.ranks)."""
    everyone = pulls_alone(section.objective)
    layout = policy.layout(section.share_prefixes)
    packed: list[tuple[Batch, bool, bool]] = []
    for learns in (True, False):
        chosen = [i for i, segment in enumerate(segments) if (everyone or bool(segment.advantage)) is learns]
        batches = pack([segments[i] for i in chosen], section.micro_batch_tokens, layout)
        for batch, counts in policy.ranks.share(batches):
            packed.append((replace(batch, index=tuple(chosen[i] for i in batch.index)), learns, counts))
    return packed


def pulls_alone(section: ObjectiveSection) -> bool:
    """Whether a segment has a gradient even where its advantage is 0."""
    return section.kl > 0 or section.entropy > 0


def _of(values: Mapping[int, float], segments: Sequence[TrainSegment], batch: Batch) -> Tensor:
    """[segments] float32: each row's value, by its trial."""
    return torch.tensor([values[segments[i].trial_id] for i in batch.index], dtype=torch.float32)


def add_up(into: dict[str, Mean], metrics: Mapping[str, Mean]) -> None:
    """Add metrics to those gathered so far."""
    for name, mean in metrics.items():
        into[name] = into[name].plus(mean)


def _scatter(into: list[FloatArray], segments: Sequence[TrainSegment], batch: Batch, logp: Tensor) -> None:
    grid = logp.detach().float().cpu()
    for row, owned, index in zip(grid, batch.mask, batch.index, strict=True):
        into[index][segments[index].mask] = row[owned].numpy()


def _gather(rows: Sequence[FloatArray], segments: Sequence[TrainSegment], batch: Batch) -> Tensor:
    grid = torch.zeros(batch.mask.shape, dtype=torch.float32)
    for place, index in enumerate(batch.index):
        owned = rows[index][segments[index].mask]
        grid[place, : len(owned)] = torch.from_numpy(owned)
    return grid
