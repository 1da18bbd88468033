"""The proof gate: no optimizer step on tokens the trainer cannot reproduce."""

from __future__ import annotations

from lego.config.schema import GateSection
from lego.objective.proof import Proof

MIN_SPREAD = 0.05
"""Standard deviation of the engine's probabilities from which their correlation says something. A policy that is
nearly certain of every token has r = .15 with |delta| = 8e-4: there the gap alone decides."""


MEAN_GAP = {"float32": 1e-3, "bfloat16": 0.05}
"""Bounds of mean |delta|, nats, by engine.dtype. Rounding is 1e-6 in float32 and .015 to .02 in bfloat16 between two
implementations; weights that are not the engine's give .2 (trl#5312), T = .9 scored at 1 gives .14."""


def gap_bound(gate: GateSection, dtype: str) -> float:
    """Nats, of mean |delta|. dtype: engine.dtype."""
    return gate.mean_logp_gap or MEAN_GAP[dtype]


def refusal(proof: Proof, gate: GateSection, dtype: str) -> str:
    """Why a step on these tokens must not be taken, in words; empty when it may. dtype: engine.dtype."""
    bound = gap_bound(gate, dtype)
    if proof.mean_gap > bound:
        return f"mean |d log p| is {proof.mean_gap:.3g} nats, above train.gate.mean_logp_gap {bound:g}"
    if proof.k3 > gate.k3:
        return f"k3 is {proof.k3:.3g} nats, above train.gate.k3 {gate.k3:g}"
    if proof.spread >= MIN_SPREAD and proof.correlation < gate.min_correlation:
        return f"correlation is {proof.correlation:.5f}, below train.gate.min_correlation {gate.min_correlation:g}"
    return ""
