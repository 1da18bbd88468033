"""The proof gate: no optimizer step on tokens the trainer cannot reproduce."""

from __future__ import annotations

from lego.config.schema import GateSection
from lego.objective.proof import Proof

MIN_SPREAD = 0.05
"""Standard deviation of the engine's probabilities from which their correlation says something. A policy that is
nearly certain of every token has r = .15 with |delta| = 8e-4: there the gap alone decides."""


def refusal(proof: Proof, gate: GateSection) -> str:
    """Why a step on these tokens must not be taken, in words; empty when it may."""
    if proof.mean_gap > gate.mean_logp_gap:
        return f"mean |d log p| is {proof.mean_gap:.3g} nats, above train.gate.mean_logp_gap {gate.mean_logp_gap:g}"
    if proof.k3 > gate.k3:
        return f"k3 is {proof.k3:.3g} nats, above train.gate.k3 {gate.k3:g}"
    if proof.spread >= MIN_SPREAD and proof.correlation < gate.min_correlation:
        return f"correlation is {proof.correlation:.5f}, below train.gate.min_correlation {gate.min_correlation:g}"
    return ""
