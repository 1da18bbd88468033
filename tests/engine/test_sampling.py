from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lego.engine.sampling import log_probs, sample

LOGITS = arrays(np.float32, (3, 17), elements=st.floats(-20, 20, width=32))
UNIFORM = st.floats(0, 1, exclude_max=True)


def reference(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(-1, keepdims=True)
    return scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))


@given(LOGITS, st.floats(0.1, 3))
def test_log_probs_are_those_of_the_tempered_softmax(logits: np.ndarray, temperature: float) -> None:
    got = log_probs(torch.from_numpy(logits), torch.full((3,), temperature)).numpy()
    np.testing.assert_allclose(got, reference(logits, temperature), atol=2e-4, rtol=1e-5)


@given(LOGITS, st.lists(UNIFORM, min_size=3, max_size=3), st.sampled_from([0.5, 1.0, 2.0]))
def test_a_draw_inverts_the_cumulative_distribution(logits: np.ndarray, uniforms: list[float], heat: float) -> None:
    ids, logp = sample(torch.from_numpy(logits), [heat] * 3, uniforms)
    for row in range(3):
        probabilities = np.exp(reference(logits[row], heat))
        below, here = probabilities[: ids[row]].sum(), probabilities[: ids[row] + 1].sum()
        assert below - 1e-5 <= uniforms[row] <= here + 1e-5
        assert logp[row] == pytest.approx(np.log(probabilities[ids[row]]), abs=2e-4)


@given(LOGITS, UNIFORM)
def test_a_row_draws_the_same_whatever_stands_beside_it(logits: np.ndarray, uniform: float) -> None:
    together, _ = sample(torch.from_numpy(logits), [1.0, 0.3, 0.0], [0.1, uniform, 0.9])
    alone, _ = sample(torch.from_numpy(logits[1:2]), [0.3], [uniform])
    assert together[1] == alone[0]


def test_an_impossible_id_is_never_drawn() -> None:
    logits = torch.full((1, 5), float("-inf"))
    logits[0, 2] = logits[0, 3] = 0.0
    drawn = {sample(logits, [1.0], [u])[0][0] for u in (0.0, 0.25, 0.4999, 0.5, 0.75, 1 - 2**-53)}
    assert drawn == {2, 3}


def test_frequencies_follow_the_distribution() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    n = 4000
    ids, _ = sample(logits.expand(n, 4), [1.0] * n, np.random.default_rng(3).random(n).tolist())
    frequencies = np.bincount(ids, minlength=4) / n
    np.testing.assert_allclose(frequencies, [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_temperature_zero_takes_the_most_probable() -> None:
    ids, logp = sample(torch.tensor([[0.0, 2.0, 1.0]]), [0.0], [0.999])
    assert ids == [1]
    assert logp[0] == pytest.approx(reference(np.array([[0.0, 2.0, 1.0]]), 1.0)[0, 1], abs=1e-6)
