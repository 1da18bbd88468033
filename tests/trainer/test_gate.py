from dataclasses import replace

import numpy as np

from lego.config.schema import GateSection
from lego.objective.proof import proof
from lego.trainer.gate import refusal

GATE = GateSection(mean_logp_gap=0.01, k3=1e-3, min_correlation=0.99)


def noisy(spread, noise, seed=0):
    rng = np.random.default_rng(seed)
    engine = np.clip(rng.normal(0.5, spread, 2000), 0.01, 0.999)
    return proof(np.log(np.clip(engine + rng.normal(0, noise, 2000), 1e-3, 1)), np.log(engine), [2000])


def test_close_enough_passes():
    assert refusal(noisy(0.2, 1e-4), GATE, "float32") == ""


def test_each_bound_is_named():
    good = noisy(0.2, 1e-4)
    assert "mean_logp_gap" in refusal(replace(good, mean_gap=0.02), GATE, "float32")
    assert "train.gate.k3" in refusal(replace(good, k3=2e-3), GATE, "float32")
    assert "min_correlation" in refusal(replace(good, correlation=0.98), GATE, "float32")


def test_the_wrong_temperature_is_refused():
    """Sampled at 0.9, scored at 1."""
    logits = np.random.default_rng(0).normal(0, 2, (500, 40))

    def logp(temperature):
        scaled = logits / temperature
        return (scaled - np.log(np.exp(scaled).sum(1, keepdims=True)))[:, 0]

    assert refusal(proof(logp(1.0), logp(0.9), [500]), GATE, "float32")


def test_correlation_is_not_asked_of_a_policy_that_is_certain():
    sure = noisy(1e-3, 1e-3)
    assert sure.correlation < 0.9
    assert refusal(sure, GATE, "float32") == ""
