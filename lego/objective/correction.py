"""The correction for what sampler and trainer disagree about: constant factors on the tokens' gradients.

mu is the distribution the engine sampled from, pi_old the trainer's with the same weights, both at the sampling
temperature. rho = pi_old / mu of a sampled token, or pi / mu where pi_old is bypassed. A weight scales what a token
pulls; a mask takes a whole segment out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lego.config.schema import CorrectionSection
from lego.errors import ObjectiveError
from lego.objective.losses import Mean


def correct(
    logp_old: Tensor, logp_engine: Tensor, mask: Tensor, section: CorrectionSection, *, weighs: bool = True
) -> tuple[Tensor, dict[str, Mean]]:
    """The factor of every token: the weight that `section` asks for, 0 in the segments that its masks take out.

    logp_old, logp_engine: [segments, tokens] float, nats.  mask: [segments, tokens] bool.  weighs: False leaves the
    weight at 1, for a loss whose own ratio is pi / mu.
    Returns the factors [segments, tokens] (1 where the mask is False), no gradient through them, and the metrics
    correction/weight, correction/capped, correction/masked (over tokens) and correction/vetoed (over segments).
    Raises ObjectiveError where a bound makes no sense.
    """
    delta = torch.where(mask, (logp_old - logp_engine).detach(), torch.zeros_like(logp_old))
    rho = torch.exp(delta)
    if not weighs:
        factor, capped = torch.ones_like(rho), torch.zeros_like(mask)
    elif section.token_tis:
        factor, capped = token_tis(rho, section.token_tis)
    elif section.sequence_tis:
        factor, capped = sequence_tis(delta, section.sequence_tis)
    elif section.icepop:
        factor, capped = icepop(rho, _interval("icepop", section.icepop))
    else:
        factor, capped = torch.ones_like(rho), torch.zeros_like(mask)
    keep = torch.ones_like(mask[:, 0])
    if section.sequence_mask:
        keep &= sequence_mask(delta, section.sequence_mask)
    if section.geometric:
        keep &= geometric_mask(delta, mask, _interval("geometric", section.geometric))
    vetoed = (rho < section.veto).any(1) if section.veto else torch.zeros_like(keep)
    keep &= ~vetoed
    factor = torch.where(mask, factor * keep[:, None], torch.ones_like(factor))
    tokens = float(mask.sum())
    return factor, {
        "correction/weight": Mean(float(factor[mask].sum()), tokens),
        "correction/capped": Mean(float((capped & mask).sum()), tokens),
        "correction/masked": Mean(float((factor[mask] == 0).sum()), tokens),
        "correction/vetoed": Mean(float(vetoed.sum()), float(len(vetoed))),
    }


def token_tis(rho: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling, one factor a token: min(rho, cap); and where it met the cap.

    rho: [segments, tokens] float.
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    return rho.clamp(max=cap), rho > cap


def sequence_tis(delta: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Truncated importance sampling, one factor a segment: min(product of its tokens' rho, cap).

    delta: [segments, tokens] float, log rho, 0 where the mask is False. Unbiased but for the cap, and of a variance
    that grows with length: on 50,000 tokens the effective sample size is next to nothing.
    Source: Liu et al. 2025, "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference
    Mismatch".
    """
    product = torch.exp(delta.sum(1, keepdim=True)).expand_as(delta)
    return product.clamp(max=cap), product > cap


def icepop(rho: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """rho where it lies within the bounds, else 0: tokens far off are left out rather than cut down.

    Source: Ling Team 2025, "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop".
    """
    outside = (rho < bounds[0]) | (rho > bounds[1])
    return torch.where(outside, torch.zeros_like(rho), rho), outside


def sequence_mask(delta: Tensor, cap: float) -> Tensor:
    """Masked importance sampling, [segments] bool: True where the product of a segment's rho is at most `cap`.

    Source: as sequence_tis.
    """
    return delta.sum(1) <= torch.log(torch.tensor(cap, dtype=delta.dtype, device=delta.device))


def geometric_mask(delta: Tensor, mask: Tensor, bounds: tuple[float, float]) -> Tensor:
    """Geometric rejection, [segments] bool: True where the geometric mean of a segment's rho lies within the bounds.

    Unlike a product it does not drift with length. Source: as sequence_tis.
    """
    mean = torch.exp(delta.sum(1) / mask.sum(1))
    return (mean >= bounds[0]) & (mean <= bounds[1])


def _interval(name: str, bounds: list[float]) -> tuple[float, float]:
    if len(bounds) != 2 or not 0 <= bounds[0] < 1 < bounds[1]:
        raise ObjectiveError(f"train.correction.{name}: {bounds} are not two bounds around 1")
    return bounds[0], bounds[1]
