import math

import numpy as np
import pytest

from lego.errors import ObjectiveError
from lego.objective.proof import proof


def test_proof_of_equal_log_probs():
    logp = np.log(np.array([0.9, 0.5, 0.1], dtype=np.float32))
    numbers = proof(logp, logp, [1, 2])
    assert numbers.correlation == pytest.approx(1.0)
    assert (numbers.mean_gap, numbers.max_gap, numbers.k3, numbers.chi2) == (0, 0, 0, 0)
    assert (numbers.ess, numbers.tokens) == (1.0, 3)


def test_proof_by_hand():
    p, q = np.array([0.8, 0.3, 0.05]), np.array([0.6, 0.4, 0.05])
    numbers = proof(np.log(p), np.log(q), [2, 1])
    w = p / q
    assert numbers.correlation == pytest.approx(np.corrcoef(p, q)[0, 1])
    assert numbers.spread == pytest.approx(q.std())
    assert numbers.mean_gap == pytest.approx((math.log(0.8 / 0.6) + math.log(0.4 / 0.3)) / 3)
    assert numbers.max_gap == pytest.approx(math.log(0.8 / 0.6))
    assert numbers.k3 == pytest.approx(np.mean(w - 1 - np.log(w)))
    assert numbers.ess == pytest.approx(w.sum() ** 2 / (3 * (w**2).sum()))
    assert numbers.chi2 == pytest.approx(np.mean(w**2) - 1)
    assert numbers.kl == pytest.approx(-np.log(w).mean())
    assert numbers.ppl_ratio == pytest.approx(math.exp(-np.log(p).mean()) / math.exp(-np.log(q).mean()))
    products = np.array([w[0] * w[1], w[2]])
    assert numbers.sequence_ess == pytest.approx(products.sum() ** 2 / (2 * (products**2).sum()))
    assert numbers.sequence_chi2 == pytest.approx(np.mean(products**2) - 1)
    assert set(numbers.metrics()) == {f"proof/{name}" for name in vars(numbers)}


def test_k3_and_chi2_estimate_the_divergences_they_name():
    """Over many samples of q they tend to KL(q || p) and chi-square(p || q)."""
    rng = np.random.default_rng(0)
    q, p = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    drawn = rng.choice(3, size=400_000, p=q)
    numbers = proof(np.log(p)[drawn], np.log(q)[drawn], [400_000])
    assert numbers.k3 == pytest.approx((q * np.log(q / p)).sum(), rel=0.02)
    assert numbers.chi2 == pytest.approx((p**2 / q).sum() - 1, rel=0.05)


def test_proof_stays_finite_far_apart():
    numbers = proof(np.array([-1.0, -2.0]), np.array([-900.0, -2.0]), [2])
    assert numbers.max_gap == 899
    assert all(math.isfinite(value) for value in numbers.metrics().values())


@pytest.mark.parametrize(
    ("train", "engine"),
    [
        (np.zeros(2), np.zeros(3)),
        (np.zeros(0), np.zeros(0)),
        (np.array([np.nan]), np.zeros(1)),
        (np.zeros((1, 1)), np.zeros((1, 1))),
    ],
)
def test_proof_refuses_what_cannot_be_compared(train, engine):
    with pytest.raises(ObjectiveError):
        proof(train, engine, [len(train)])


def test_proof_refuses_segments_that_own_other_tokens():
    for lengths in ([1], [2, 0], [3]):
        with pytest.raises(ObjectiveError, match="own"):
            proof(np.zeros(2), np.zeros(2), lengths)
