"""The objectives against a float64 NumPy reference written from the papers, and what must not change them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lego.errors import ObjectiveError
from lego.objective.losses import Clip, cross_entropy, grpo, gspo

CLIP = Clip(0.15, 0.25)
NAMES = {"gspo": gspo, "grpo": grpo}


def reference(name, logp, old, mask, advantage, weight, clip):
    """The objective as the papers print it: one segment after the other, one token after the other."""
    loss = 0.0
    for i in range(len(logp)):
        tokens = [t for t in range(logp.shape[1]) if mask[i, t]]
        if name == "gspo":
            ratios = [math.exp(sum(logp[i, t] - old[i, t] for t in tokens) / len(tokens))]
        else:
            ratios = [math.exp(logp[i, t] - old[i, t]) for t in tokens]
        gains = [min(r * advantage[i], min(max(r, 1 - clip.low), 1 + clip.high) * advantage[i]) for r in ratios]
        loss -= weight[i] * sum(gains) / len(gains)
    return loss


def ratios_of(name, logp, old, mask):
    delta = np.where(mask, logp - old, 0)
    return np.exp(delta.sum(1) / mask.sum(1)) if name == "gspo" else np.exp(delta)[mask]


def case(seed, segments=4, tokens=7, scale=0.3):
    rng = np.random.default_rng(seed)
    old = -rng.exponential(1.0, (segments, tokens))
    logp = old + rng.normal(0, scale, old.shape)
    mask = rng.random(old.shape) < 0.6
    mask[:, 1] = True
    return logp, old, mask, rng.normal(0, 1, segments), rng.random(segments) + 0.1


def tensors(*arrays):
    return [torch.from_numpy(np.array(a)) for a in arrays]


def run(name, logp, old, mask, advantage, weight, clip=CLIP, correction=None):
    t = tensors(logp, old, mask, advantage, weight)
    t[0].requires_grad_()
    factor = None if correction is None else torch.from_numpy(correction)
    result = NAMES[name](*t, clip, factor)
    result.loss.backward()
    return result, t[0].grad.numpy()


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 0.05, 0.4]))
@settings(max_examples=40, deadline=None)
def test_loss_and_gradient_are_those_of_the_reference(name, seed, scale):
    logp, old, mask, advantage, weight = case(seed, scale=scale)
    edges = np.array([1 - CLIP.low, 1 + CLIP.high])
    assume(np.abs(ratios_of(name, logp, old, mask)[:, None] - edges).min() > 1e-3)
    result, gradient = run(name, logp, old, mask, advantage, weight)
    assert result.loss.item() == pytest.approx(reference(name, logp, old, mask, advantage, weight, CLIP), abs=1e-12)
    numeric, step = np.zeros_like(logp), 1e-6
    for index in np.ndindex(*logp.shape):
        up, down = logp.copy(), logp.copy()
        up[index] += step
        down[index] -= step
        numeric[index] = (
            reference(name, up, old, mask, advantage, weight, CLIP)
            - reference(name, down, old, mask, advantage, weight, CLIP)
        ) / (2 * step)
    np.testing.assert_allclose(gradient, numeric, atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_correction_scales_each_tokens_gradient_alone(name):
    logp, old, mask, advantage, weight = case(3, scale=0.01)
    factor = np.random.default_rng(1).random(logp.shape) * 2
    _, plain = run(name, logp, old, mask, advantage, weight)
    _, corrected = run(name, logp, old, mask, advantage, weight, correction=factor)
    np.testing.assert_allclose(corrected, plain * factor, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_at_ratio_one_a_trial_pulls_the_same_however_it_was_cut(name):
    """n_segment / n_trial: one segment of 6 tokens, or the same tokens as segments of 2 and 4."""
    logp = -np.arange(1.0, 7.0)
    whole = (logp[None], logp[None], np.ones((1, 6), bool), np.array([1.7]), np.array([1.0]))
    mask = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1]], bool)
    twice = np.stack([logp, logp])
    cut = (twice, twice, mask, np.array([1.7, 1.7]), np.array([2 / 6, 4 / 6]))
    (one, gradient), (two, gradients) = run(name, *whole), run(name, *cut)
    assert one.loss.item() == pytest.approx(two.loss.item())
    np.testing.assert_allclose(gradients.sum(0), gradient[0], atol=1e-12)
    np.testing.assert_allclose(gradient[0], -1.7 / 6, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000), pad=st.integers(1, 5), order=st.permutations(range(4)))
@settings(max_examples=40, deadline=None)
def test_padding_and_order_change_nothing(name, seed, pad, order):
    logp, old, mask, advantage, weight = case(seed)
    result, gradient = run(name, logp, old, mask, advantage, weight)
    order = list(order)
    junk = np.full((4, pad), np.nan)  # whatever a padded column holds must not leak in
    wider = [np.concatenate([grid[order], junk], 1) for grid in (logp, old)]
    wide_mask = np.concatenate([mask[order], np.zeros((4, pad), bool)], 1)
    other, moved = run(name, *wider, wide_mask, advantage[order], weight[order])
    assert other.loss.item() == pytest.approx(result.loss.item(), rel=1e-12)
    np.testing.assert_allclose(moved[:, :7], gradient[order], atol=1e-12)
    assert not moved[:, 7:].any()
    for key, mean in result.metrics.items():
        assert other.metrics[key].value == pytest.approx(mean.value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 10_000), at=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_micro_batches_add_up(name, seed, at):
    grids = case(seed)
    whole, gradient = run(name, *grids)
    (left, a), (right, b) = run(name, *[g[:at] for g in grids]), run(name, *[g[at:] for g in grids])
    assert (left.loss + right.loss).item() == pytest.approx(whole.loss.item(), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(np.concatenate([a, b]), gradient, atol=1e-12)
    for key, mean in whole.metrics.items():
        assert left.metrics[key].plus(right.metrics[key]).value == pytest.approx(mean.value, rel=1e-9, abs=1e-12)


def test_clipped_fraction_counts_what_the_clip_silences():
    old = np.zeros((4, 1)) - 2
    logp = old + np.log([[1.5], [1.5], [0.5], [0.5]])
    mask, advantage = np.ones((4, 1), bool), np.array([1.0, -1.0, 1.0, -1.0])
    for name in NAMES:
        result, gradient = run(name, logp, old, mask, advantage, np.ones(4))
        assert result.metrics["ratio/clipped"].value == 0.5
        assert [bool(g) for g in gradient[:, 0]] == [False, True, True, False]
        assert result.metrics["ratio/mean"].value == pytest.approx(1.0)


def test_what_does_not_fit_is_refused():
    logp, old, mask, advantage, weight = tensors(*case(0))
    empty = mask.clone()
    empty[2] = False
    with pytest.raises(ObjectiveError, match="segment 2 owns no token"):
        gspo(logp, old, empty, advantage, weight, CLIP)
    with pytest.raises(ObjectiveError, match="logp_old"):
        grpo(logp, old[:, :3], mask, advantage, weight, CLIP)
    with pytest.raises(ObjectiveError, match="advantage"):
        gspo(logp, old, mask, advantage[:2], weight, CLIP)
    with pytest.raises(ObjectiveError, match="bool"):
        gspo(logp, old, mask.float(), advantage, weight, CLIP)


def test_cross_entropy_sums_the_masked_tokens():
    logp = torch.tensor([[0.0, -1.0, float("nan")], [-5.0, -2.0, -3.0]], dtype=torch.float64)
    mask = torch.tensor([[False, True, False], [False, True, True]])
    result = cross_entropy(logp, mask)
    assert float(result.loss) == 6.0
    assert result.metrics["sft/loss"].value == 2.0
