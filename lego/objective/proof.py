"""The proof that the trainer reproduces what the engine sampled, before anything is trained on it.

delta = log pi_old - log mu of a sampled token: the trainer's log-prob, with the same weights, less the engine's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from lego.errors import ObjectiveError

DELTA_LIMIT = 20.0
"""Nats at which delta is cut before it is exponentiated in a proof number, so that each stays finite."""


@dataclass(frozen=True)
class Proof:
    """How closely the trainer reproduces the engine, over the sampled tokens of one step.

    correlation: Pearson's, of the probabilities exp(log pi), exp(log mu); 1 where neither varies.
    spread: standard deviation of the engine's probabilities; the correlation means little where it is small.
    mean_gap, max_gap: |delta|, nats.  k3: mean of exp(delta) - 1 - delta, nats, an estimate of KL(mu || pi)
    (Schulman 2020, "Approximating KL divergence").  ess: (sum w)^2 / (n sum w^2), w = exp(delta), 1 at best.
    chi2: mean of w^2, less 1, an estimate of chi-square(pi || mu).  kl: mean of -delta, nats, the plain estimate of
    KL(mu || pi).  ppl_ratio: perplexity of the tokens under pi over that under mu.  sequence_ess, sequence_chi2: the
    same two over segments, w being the product of a segment's.  tokens: how many.
    """

    correlation: float
    spread: float
    mean_gap: float
    max_gap: float
    k3: float
    ess: float
    chi2: float
    kl: float
    ppl_ratio: float
    sequence_ess: float
    sequence_chi2: float
    tokens: int

    def metrics(self) -> dict[str, float]:
        return {f"proof/{name}": float(value) for name, value in asdict(self).items()}


def proof(logp_train: npt.NDArray[np.floating], logp_engine: npt.NDArray[np.floating], lengths: Sequence[int]) -> Proof:
    """The proof numbers of one step.

    logp_train, logp_engine: [n] float, nats, finite, n >= 1: of the same sampled ids, in the same order.
    lengths: how many of them each segment owns, > 0, one segment after the other; they add up to n.
    Raises ObjectiveError where lengths disagree, nothing was sampled, or a value is not finite.
    """
    if logp_train.shape != logp_engine.shape or logp_train.ndim != 1 or not logp_train.size:
        raise ObjectiveError(f"{logp_train.shape} log-probs from the trainer, {logp_engine.shape} from the engine")
    if sum(lengths) != logp_train.size or min(lengths) < 1:
        raise ObjectiveError(f"segments own {sum(lengths)} tokens, and {logp_train.size} have log-probs")
    train, engine = logp_train.astype(np.float64), logp_engine.astype(np.float64)
    if not (np.isfinite(train).all() and np.isfinite(engine).all()):
        raise ObjectiveError("a log-prob is not finite")
    delta = train - engine
    cut = np.clip(delta, -DELTA_LIMIT, DELTA_LIMIT)
    starts = np.cumsum([0, *lengths[:-1]])
    ratio = np.exp(cut)
    products = np.exp(np.clip(np.add.reduceat(delta, starts), -DELTA_LIMIT, DELTA_LIMIT))
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
        ess=_ess(ratio),
        chi2=float(np.square(ratio).mean() - 1.0),
        kl=float(-delta.mean()),
        ppl_ratio=math.exp(min(float(-delta.mean()), DELTA_LIMIT)),
        sequence_ess=_ess(products),
        sequence_chi2=float(np.square(products).mean() - 1.0),
        tokens=int(delta.size),
    )


def _ess(weights: npt.NDArray[np.float64]) -> float:
    return float(weights.sum() ** 2 / (weights.size * np.square(weights).sum()))
