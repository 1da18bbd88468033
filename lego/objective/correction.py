"""What sampler and trainer disagree about: the correction for it, and the proof that it is small.

mu is the distribution the engine sampled from, pi the trainer's with the same weights. Both are at the sampling
temperature. delta = log pi - log mu of a sampled token.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lego.errors import ObjectiveError
from lego.objective.losses import Mean

DELTA_LIMIT = 20.0
"""Nats at which delta is cut before it is exponentiated in a proof number, so that each stays finite."""


def token_tis(logp_old: Tensor, logp_engine: Tensor, mask: Tensor, cap: float) -> tuple[Tensor, Mean]:
    """Truncated importance sampling, one factor a token: min(pi_old / mu, cap), a constant for the gradient.

    logp_old, logp_engine: [segments, tokens] float, nats.  mask: [segments, tokens] bool.  cap > 0.
    Returns the factors [segments, tokens] (1 where the mask is False) and the fraction that met the cap.
    Source: Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".
    """
    if cap <= 0:
        raise ObjectiveError(f"the bound of truncated importance sampling must be above 0, not {cap}")
    delta = torch.where(mask, (logp_old - logp_engine).detach(), torch.zeros_like(logp_old))
    factor = torch.exp(delta)
    met = (factor > cap) & mask
    capped = torch.where(mask, factor.clamp(max=cap), torch.ones_like(factor))
    return capped, Mean(float(met.sum()), float(mask.sum()))


@dataclass(frozen=True)
class Proof:
    """How closely the trainer reproduces the engine, over the sampled tokens of one step.

    correlation: Pearson's, of the probabilities exp(log pi), exp(log mu); 1 where neither varies.
    spread: standard deviation of the engine's probabilities; the correlation means little where it is small.
    mean_gap, max_gap: |delta|, nats.  k3: mean of exp(delta) - 1 - delta, nats, an estimate of KL(mu || pi)
    (Schulman 2020, "Approximating KL divergence").  ess: (sum w)^2 / (n sum w^2), w = exp(delta), 1 at best.
    chi2: mean of w^2, less 1, an estimate of chi-square(pi || mu).  tokens: how many.
    """

    correlation: float
    spread: float
    mean_gap: float
    max_gap: float
    k3: float
    ess: float
    chi2: float
    tokens: int

    def metrics(self) -> dict[str, float]:
        return {f"proof/{name}": float(value) for name, value in asdict(self).items()}


def proof(logp_train: npt.NDArray[np.floating], logp_engine: npt.NDArray[np.floating]) -> Proof:
    """The proof numbers of one step.

    logp_train, logp_engine: [n] float, nats, finite, n >= 1: of the same sampled ids, in the same order.
    Raises ObjectiveError where lengths disagree, nothing was sampled, or a value is not finite.
    """
    if logp_train.shape != logp_engine.shape or logp_train.ndim != 1 or not logp_train.size:
        raise ObjectiveError(f"{logp_train.shape} log-probs from the trainer, {logp_engine.shape} from the engine")
    train, engine = logp_train.astype(np.float64), logp_engine.astype(np.float64)
    if not (np.isfinite(train).all() and np.isfinite(engine).all()):
        raise ObjectiveError("a log-prob is not finite")
    delta = train - engine
    cut = np.clip(delta, -DELTA_LIMIT, DELTA_LIMIT)
    ratio = np.exp(cut)
    p, q = np.exp(train), np.exp(engine)
    scatter = float(p.std() * q.std())
    if scatter > 0:
        correlation = float(np.mean((p - p.mean()) * (q - q.mean())) / scatter)
    else:
        correlation = 1.0 if p.std() == q.std() else 0.0
    return Proof(
        correlation=correlation,
        spread=float(q.std()),
        mean_gap=float(np.abs(delta).mean()),
        max_gap=float(np.abs(delta).max()),
        k3=float(np.mean(np.expm1(cut) - cut)),
        ess=float(ratio.sum() ** 2 / (ratio.size * np.square(ratio).sum())),
        chi2=float(np.square(ratio).mean() - 1.0),
        tokens=int(delta.size),
    )
