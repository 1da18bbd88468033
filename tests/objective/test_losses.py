"""The objectives against a float64 NumPy reference written from the papers, and what must not change them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lego.errors import ObjectiveError
from lego.objective.losses import Clip, cispo, cross_entropy, entropy_bonus, grpo, gspo, reference_kl, reinforce

CLIP = Clip(0.15, 0.25)
NAMES = {"gspo": gspo, "grpo": grpo, "cispo": cispo, "reinforce": reinforce}


def reference(name, logp, old, mask, advantage, weight, clip, fixed=None):
    """The objective as the papers print it: one segment after the other, one token after the other.

    fixed: the log-probs that a stopped gradient sees (cispo's factor); those of `logp` unless given.
    """
    loss, fixed = 0.0, logp if fixed is None else fixed
    for i in range(len(logp)):
        tokens = [t for t in range(logp.shape[1]) if mask[i, t]]
        ratios = [math.exp(logp[i, t] - old[i, t]) for t in tokens]
        if name == "gspo":
            ratios = [math.exp(sum(logp[i, t] - old[i, t] for t in tokens) / len(tokens))]
        if name in ("gspo", "grpo"):
            gains = [min(r * advantage[i], min(max(r, 1 - clip.low), 1 + clip.high) * advantage[i]) for r in ratios]
        elif name == "cispo":
            factors = [min(max(math.exp(fixed[i, t] - old[i, t]), 1 - clip.low), 1 + clip.high) for t in tokens]
            gains = [f * advantage[i] * logp[i, t] for f, t in zip(factors, tokens, strict=True)]
        else:
            gains = [advantage[i] * logp[i, t] for t in tokens]
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
            reference(name, up, old, mask, advantage, weight, CLIP, logp)
            - reference(name, down, old, mask, advantage, weight, CLIP, logp)
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
    for name in ("gspo", "grpo"):
        result, gradient = run(name, logp, old, mask, advantage, np.ones(4))
        assert result.metrics["ratio/clipped"].value == 0.5
        assert [bool(g) for g in gradient[:, 0]] == [False, True, True, False]
        assert result.metrics["ratio/mean"].value == pytest.approx(1.0)


def test_cispo_cuts_the_factor_and_keeps_every_gradient():
    old = np.zeros((4, 1)) - 2
    logp = old + np.log([[1.5], [1.5], [0.5], [0.5]])
    mask, advantage = np.ones((4, 1), bool), np.array([1.0, -1.0, 1.0, -1.0])
    result, gradient = run("cispo", logp, old, mask, advantage, np.ones(4), clip=Clip(1.0, 0.25))
    np.testing.assert_allclose(gradient[:, 0], [-1.25, 1.25, -0.5, 0.5])
    assert result.metrics["ratio/clipped"].value == 0.5


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_one_ratio_a_trial_is_that_of_all_its_tokens(seed):
    """Two segments given their trial's ratio move as one segment with the tokens of both does."""
    logp, old, mask, advantage, weight = case(seed, segments=1, scale=0.05)
    mask[0, :4] = [True, True, False, True]
    first, second = mask.copy(), mask.copy()
    first[0, 2:] = False
    second &= ~first
    assume(second.any())
    whole, gradient = run("gspo", logp, old, mask, advantage, np.ones(1))
    sizes = np.array([first.sum(), second.sum()])
    twice, olds = np.concatenate([logp, logp]), np.concatenate([old, old])
    log_ratio = np.full(2, (logp - old)[mask].mean())
    t = tensors(twice, olds, np.concatenate([first, second]), np.repeat(advantage, 2), sizes / sizes.sum())
    t[0].requires_grad_()
    cut = gspo(*t, CLIP, None, torch.from_numpy(log_ratio))
    cut.loss.backward()
    assert cut.loss.item() == pytest.approx(whole.loss.item(), rel=1e-12)
    np.testing.assert_allclose(t[0].grad.numpy().sum(0), gradient[0], atol=1e-12)


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_reference_pulls_back_by_k3(seed):
    logp, ref, mask, _, weight = case(seed)
    grids = tensors(logp, np.where(mask, ref, np.nan), mask, weight)
    grids[0].requires_grad_()
    held = reference_kl(*grids)
    held.loss.backward()
    delta = np.where(mask, ref - logp, 0)
    share = weight[:, None] / mask.sum(1, keepdims=True)
    assert held.loss.item() == pytest.approx(((np.exp(delta) - 1 - delta) * mask * share).sum(), rel=1e-9)
    np.testing.assert_allclose(grids[0].grad.numpy(), (1 - np.exp(delta)) * mask * share, atol=1e-12)
    assert held.metrics["kl/reference"].value == pytest.approx((np.exp(delta) - 1 - delta)[mask].mean())
    with pytest.raises(ObjectiveError, match="logp_ref"):
        reference_kl(grids[0], grids[1][:, :2], grids[2], grids[3])


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_entropy_is_rewarded_as_a_mean_over_each_segment(seed):
    _, _, mask, _, weight = case(seed)
    entropy = np.random.default_rng(seed).exponential(1.0, mask.shape)
    grids = tensors(np.where(mask, entropy, np.nan), mask, weight)
    grids[0].requires_grad_()
    wide = entropy_bonus(*grids)
    wide.loss.backward()
    wanted = -sum(w * row[m].mean() for w, row, m in zip(weight, entropy, mask, strict=True))
    assert wide.loss.item() == pytest.approx(wanted, rel=1e-12)
    np.testing.assert_allclose(
        grids[0].grad.numpy(), -1.0 * mask * weight[:, None] / mask.sum(1, keepdims=True), atol=1e-12
    )
    assert wide.metrics["step/entropy"].value == pytest.approx(entropy[mask].mean())
    with pytest.raises(ObjectiveError, match="entropy is"):
        entropy_bonus(grids[0][:, :2], grids[1], grids[2])


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
