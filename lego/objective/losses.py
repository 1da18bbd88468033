"""The policy-gradient losses, as pure functions of log-probs.

All of them return a SUM over segments, each times its weight, so that micro-batches simply add up. Who calls decides
what the weights are (lego.objective.recipes) and what they are normalised by (the trainer: one optimizer step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from lego.errors import ObjectiveError


class Clip(NamedTuple):
    """The importance ratio is clipped to [1 - low, 1 + high]."""

    low: float
    high: float


class Mean(NamedTuple):
    """A mean still in parts, so that micro-batches can be added up."""

    total: float = 0.0
    n: float = 0.0

    @property
    def value(self) -> float:
        return self.total / self.n if self.n else 0.0

    def plus(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.n + other.n)


@dataclass(frozen=True)
class Objective:
    """loss: scalar tensor to minimise. metrics: by name (lego.metrics), means in parts."""

    loss: Tensor
    metrics: Mapping[str, Mean] = field(default_factory=dict)


class PolicyObjective(Protocol):
    def __call__(
        self,
        logp: Tensor,
        logp_old: Tensor,
        mask: Tensor,
        advantage: Tensor,
        weight: Tensor,
        clip: Clip,
        correction: Tensor | None = None,
    ) -> Objective: ...


def gspo(
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip: Clip,
    correction: Tensor | None = None,
    log_ratio: Tensor | None = None,
) -> Objective:
    """Group Sequence Policy Optimization, one ratio a segment: s = exp(mean over its tokens of logp - logp_old).

    logp, logp_old: [segments, tokens] float, nats, of the sampled ids under pi and pi_old (at the sampling
    temperature); what stands where the mask is False is not looked at.
    mask: [segments, tokens] bool, True on owned sampled ids.  advantage, weight: [segments] float.
    correction: [segments, tokens] float or None, a constant factor on each token's gradient (objective/correction.py).
    log_ratio: [segments] float or None, log s where it is not the segment's own: that of its whole trial.
    Returns the loss to minimise (scalar) and metrics: ratio/mean, ratio/clipped (both over segments), ratio/k3, of
    what has an advantage.
    Raises ObjectiveError if a segment owns no token or shapes disagree.
    Source: Zheng et al. 2025, arXiv:2507.18071, eq. 5-7, written as GSPO-token (eq. 13-14), which has the same value
    and gradient while `correction` is None; weights as in docs/objective.md.
    """
    delta, tokens = _deltas(logp, logp_old, mask, advantage, weight, correction)
    if log_ratio is not None and log_ratio.shape != advantage.shape:
        raise ObjectiveError(f"there are {logp.shape[0]} segments but log_ratio is {tuple(log_ratio.shape)}")
    own = delta.sum(1).detach() / tokens
    ratio = torch.exp(own if log_ratio is None else log_ratio.detach())
    per_token = ratio[:, None] * torch.exp(delta - delta.detach())
    loss = _clipped_sum(per_token, mask, tokens, advantage, weight, clip, correction)
    pulls = advantage != 0
    clipped = _binds(ratio, advantage, clip)[pulls]
    return Objective(loss, _metrics(ratio[pulls], clipped, delta.detach()[_pulling(mask, advantage)]))


def grpo(
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip: Clip,
    correction: Tensor | None = None,
) -> Objective:
    """Group Relative Policy Optimization, one ratio a token, mean over a segment's tokens, no KL term.

    Arguments, returns and errors as `gspo`; ratio/mean and ratio/clipped are over tokens.
    Source: Shao et al. 2024, arXiv:2402.03300, eq. 3 with beta = 0; asymmetric clip: Yu et al. 2025, arXiv:2503.14476.
    """
    delta, tokens = _deltas(logp, logp_old, mask, advantage, weight, correction)
    ratio = torch.exp(delta)
    loss = _clipped_sum(ratio, mask, tokens, advantage, weight, clip, correction)
    pulling = _pulling(mask, advantage)
    flat = ratio.detach()[pulling]
    signs = advantage[:, None].expand_as(mask)[pulling]
    return Objective(loss, _metrics(flat, _binds(flat, signs, clip), delta.detach()[pulling]))


def cispo(
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip: Clip,
    correction: Tensor | None = None,
) -> Objective:
    """Clipped importance-sampling policy optimization: the clipped ratio is a constant factor on A log pi, so that no
    token loses its gradient.

    Arguments, returns and errors as `gspo`; ratio/mean and ratio/clipped (the factor was cut) are over tokens.
    Source: MiniMax 2025, arXiv:2506.13585, eq. 4-5; clip.low = 1 leaves the ratio free downwards, as there.
    """
    delta, tokens = _deltas(logp, logp_old, mask, advantage, weight, correction)
    ratio = torch.exp(delta.detach())
    factor = ratio.clamp(1.0 - clip.low, 1.0 + clip.high)
    loss = _sum(_ascent(delta, logp) * factor, mask, tokens, advantage, weight, correction)
    pulling = _pulling(mask, advantage)
    flat = ratio[pulling]
    return Objective(loss, _metrics(flat, flat != factor[pulling], delta.detach()[pulling]))


def reinforce(
    logp: Tensor,
    logp_old: Tensor,
    mask: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip: Clip,
    correction: Tensor | None = None,
) -> Objective:
    """The plain policy gradient, A log pi, without an importance ratio: exact at the first optimizer step of a round.

    Arguments, returns and errors as `gspo`; `clip` has nothing to clip, and ratio/mean tells how far pi has moved.
    Source: Williams 1992, "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
    """
    delta, tokens = _deltas(logp, logp_old, mask, advantage, weight, correction)
    loss = _sum(_ascent(delta, logp), mask, tokens, advantage, weight, correction)
    moved = delta.detach()[_pulling(mask, advantage)]
    flat = torch.exp(moved)
    return Objective(loss, _metrics(flat, torch.zeros_like(flat), moved))


def reference_kl(logp: Tensor, logp_ref: Tensor, mask: Tensor, weight: Tensor) -> Objective:
    """The k3 estimate of KL(pi || reference), nats: mean over a segment's tokens of e^d - 1 - d, d = logp_ref - logp.

    logp, logp_ref: [segments, tokens] float, nats.  mask: [segments, tokens] bool.  weight: [segments] float.
    Returns the weighted sum over segments, and the metric kl/reference (over tokens).
    Source: Schulman 2020, "Approximating KL divergence"; in the loss: Shao et al. 2024, arXiv:2402.03300, eq. 4.
    """
    if not logp.shape == logp_ref.shape == mask.shape or weight.shape != logp.shape[:1]:
        raise ObjectiveError(
            f"logp is {tuple(logp.shape)}, logp_ref {tuple(logp_ref.shape)}, mask {tuple(mask.shape)}, "
            f"weight {tuple(weight.shape)}"
        )
    delta = torch.where(mask, logp_ref.detach() - logp, torch.zeros_like(logp))
    k3 = torch.expm1(delta) - delta
    flat = k3.detach()[mask]
    return Objective(
        (weight * k3.sum(1) / mask.sum(1)).sum(), {"kl/reference": Mean(float(flat.sum()), float(flat.numel()))}
    )


def entropy_bonus(entropy: Tensor, mask: Tensor, weight: Tensor) -> Objective:
    """What keeps a policy from growing sure too soon: less the mean entropy over a segment's tokens, nats.

    entropy: [segments, tokens] float, nats, of the whole distribution that each owned id was drawn from.
    mask: [segments, tokens] bool.  weight: [segments] float.
    Returns the weighted sum over segments, to minimise, and the metric step/entropy (over tokens).
    Source: Williams and Peng 1991, "Function optimization using connectionist reinforcement learning algorithms".
    """
    if entropy.shape != mask.shape or weight.shape != entropy.shape[:1]:
        raise ObjectiveError(
            f"entropy is {tuple(entropy.shape)}, mask {tuple(mask.shape)}, weight {tuple(weight.shape)}"
        )
    owned = torch.where(mask, entropy, torch.zeros_like(entropy))
    loss = -(weight * owned.sum(1) / mask.sum(1)).sum()
    return Objective(loss, {"step/entropy": Mean(float(owned.detach().sum()), float(mask.sum()))})


def cross_entropy(logp: Tensor, mask: Tensor) -> Objective:
    """Negative log-likelihood of the masked tokens, nats, SUMMED; the mean is the metric sft/loss.

    logp: [segments, tokens] float.  mask: [segments, tokens] bool.
    """
    if logp.shape != mask.shape:
        raise ObjectiveError(f"log-probs are {tuple(logp.shape)} but the mask is {tuple(mask.shape)}")
    loss = -torch.where(mask, logp, torch.zeros_like(logp)).sum()
    return Objective(loss, {"sft/loss": Mean(float(loss.detach()), float(mask.sum()))})


def _deltas(
    logp: Tensor, logp_old: Tensor, mask: Tensor, advantage: Tensor, weight: Tensor, correction: Tensor | None
) -> tuple[Tensor, Tensor]:
    """logp - logp_old, [segments, tokens], 0 where masked out; and the tokens each segment owns, [segments]."""
    grids = {"logp_old": logp_old, "mask": mask} | ({} if correction is None else {"correction": correction})
    for name, grid in grids.items():
        if grid.shape != logp.shape or logp.dim() != 2:
            raise ObjectiveError(f"logp is {tuple(logp.shape)} but {name} is {tuple(grid.shape)}")
    for name, row in (("advantage", advantage), ("weight", weight)):
        if row.shape != logp.shape[:1]:
            raise ObjectiveError(f"there are {logp.shape[0]} segments but {name} is {tuple(row.shape)}")
    if mask.dtype != torch.bool:
        raise ObjectiveError(f"the mask must be bool, not {mask.dtype}")
    tokens = mask.sum(1)
    if not bool((tokens > 0).all()):
        raise ObjectiveError(f"segment {int((tokens == 0).nonzero()[0])} owns no token")
    return torch.where(mask, logp - logp_old.detach(), torch.zeros_like(logp)), tokens


def _ascent(delta: Tensor, logp: Tensor) -> Tensor:
    """log pi up to a constant: the gradient of logp, and its value, without what stands outside the mask."""
    return delta - delta.detach() + logp.detach()


def _clipped_sum(
    ratio: Tensor,
    mask: Tensor,
    tokens: Tensor,
    advantage: Tensor,
    weight: Tensor,
    clip: Clip,
    correction: Tensor | None,
) -> Tensor:
    """- sum over segments of weight x mean over owned tokens of correction x min(ratio A, clip(ratio) A)."""
    gain = torch.minimum(ratio * advantage[:, None], ratio.clamp(1.0 - clip.low, 1.0 + clip.high) * advantage[:, None])
    return _sum(gain, mask, tokens, torch.ones_like(advantage), weight, correction)


def _sum(
    gain: Tensor, mask: Tensor, tokens: Tensor, advantage: Tensor, weight: Tensor, correction: Tensor | None
) -> Tensor:
    """- sum over segments of weight x advantage x mean over owned tokens of correction x gain."""
    if correction is not None:
        gain = gain * correction.detach()
    per_segment = torch.where(mask, gain, torch.zeros_like(gain)).sum(1) / tokens
    return -(weight * advantage * per_segment).sum()


def _binds(ratio: Tensor, advantage: Tensor, clip: Clip) -> Tensor:
    """True where the clip takes the gradient away."""
    return ((advantage > 0) & (ratio > 1.0 + clip.high)) | ((advantage < 0) & (ratio < 1.0 - clip.low))


def _pulling(mask: Tensor, advantage: Tensor) -> Tensor:
    """[segments, tokens] bool: the owned tokens that have an advantage; of the others no ratio is of interest."""
    return mask & (advantage != 0)[:, None]


def _metrics(ratio: Tensor, clipped: Tensor, delta: Tensor) -> dict[str, Mean]:
    k3 = torch.expm1(delta) - delta
    return {
        "ratio/mean": Mean(float(ratio.sum()), float(ratio.numel())),
        "ratio/clipped": Mean(float(clipped.sum()), float(clipped.numel())),
        "ratio/k3": Mean(float(k3.sum()), float(k3.numel())),
    }
