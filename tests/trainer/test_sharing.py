"""What must not change a step: padding, packing, order, micro-batches, shared prefixes, who is left out."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from lego.config.schema import ObjectiveSection
from lego.trainer.batch import TrainSegment, pack
from lego.trainer.gradient import Gradient, score
from lego.trainer.policy import Policy
from tests.trainer._forks import forked_trial, unique_tokens
from tests.trainer._sampled import section

LAYOUTS = ("forest", "packed", "rows")


@pytest.fixture(scope="module")
def policy(tiny_policy):
    return Policy(tiny_policy)


def with_logprobs(policy, given_, seed=0):
    """The engine's log-probs: the policy's own, each a little off."""
    noise = np.random.default_rng(seed)
    return [
        replace(s, logprobs=np.where(s.mask, np.minimum(row + noise.normal(0, 0.05, len(row)), 0), 0).astype("f4"))
        for s, row in zip(given_, score(policy, given_, 0.9, section()), strict=True)
    ]


def step(policy, given_, layout="forest", tokens=100_000, name="grpo", dtype=torch.float32):
    """(loss, gradients) of a step on these segments, against the engine's log-probs."""
    train = section(micro_batch_tokens=tokens, objective=ObjectiveSection(name), share_prefixes=layout == "forest")
    train.correction.old = "bypass"
    before, policy.packs = policy.packs, layout != "rows"
    policy.model.zero_grad(set_to_none=True)
    try:
        _, metrics = Gradient(policy, train, 0.9, longest=64).accumulate(given_)
    finally:
        policy.packs = before
    return metrics["step/loss"].total, [p.grad.clone() for p in policy.model.parameters()]


def same(one, other, atol=1e-5):
    assert other[0] == pytest.approx(one[0], abs=1e-6)
    for a, b in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(b, a, rtol=0, atol=atol * max(1.0, float(a.abs().max())))


@pytest.fixture(scope="module")
def trial(policy):
    return with_logprobs(policy, forked_trial(policy.vocabulary, turns=3))


@pytest.mark.parametrize("name", ["gspo", "grpo"])
def test_a_forked_trial_costs_its_unique_tokens_and_pulls_as_its_segments_do(policy, trial, name):
    (batch,) = pack(trial, 100_000)
    assert sum(len(segment.ids) for segment in trial) > 1.5 * unique_tokens(trial)
    assert batch.ids.numel() / unique_tokens(trial) <= 1.15
    unshared = step(policy, trial, "rows", tokens=1, name=name)  # each segment by itself, as a plain trainer has it
    for layout in ("forest", "packed"):
        same(unshared, step(policy, trial, layout, name=name))


def test_split_over_micro_batches_a_forked_trial_pulls_the_same(policy, trial):
    whole = step(policy, trial)
    assert len(pack(trial, 1200)) > 1
    same(whole, step(policy, trial, tokens=1200))


groups = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(3, 40), st.integers(1, 30), st.integers(0, 3), st.sampled_from([1.0, -0.7])
    ),
    min_size=2,
    max_size=7,
)


def grown(policy, shapes):
    """Segments of three prompts: some of a prompt, then something of their own, then a rendered tail."""
    rng = np.random.default_rng(len(shapes))
    prompts = [rng.integers(0, policy.vocabulary, 40) for _ in range(3)]
    segments = []
    for trial, (which, taken, own, tail, advantage) in enumerate(shapes):
        ids = np.r_[prompts[which][:taken], rng.integers(0, policy.vocabulary, own + tail)].astype(np.int32)
        mask = np.zeros(len(ids), bool)
        mask[taken : taken + own] = rng.random(own) < 0.7
        mask[taken + own - 1] = True
        segments.append(TrainSegment(trial, ids, mask, np.zeros(len(ids), np.float32), advantage))
    return with_logprobs(policy, segments)


@given(groups, st.randoms(use_true_random=False), st.integers(8, 200))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_layout_order_and_micro_batches_change_nothing(policy, shapes, chance, tokens):
    segments = grown(policy, shapes)
    one = step(policy, segments, "rows", tokens=1)
    for layout in LAYOUTS:
        moved = segments.copy()
        chance.shuffle(moved)
        same(one, step(policy, moved, layout, tokens=tokens))


@given(groups)
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_trial_given_twice_pulls_twice_and_one_without_advantage_only_dilutes(policy, shapes):
    segments = grown(policy, shapes)
    n = len(segments)
    loss, pulls = step(policy, segments)
    twice = segments + [replace(segment, trial_id=segment.trial_id + 100) for segment in segments]
    same((loss, pulls), step(policy, twice))  # a mean over trials
    flat = [replace(segment, trial_id=900 + i, advantage=0.0) for i, segment in enumerate(segments[:1])]
    loss_with, pulls_with = step(policy, segments + flat)
    same((loss * n / (n + 1), [pull * n / (n + 1) for pull in pulls]), (loss_with, pulls_with))


def test_linear_attention_is_not_packed_and_is_scored_as_it_is(tmp_path):
    """Its state would run on from one segment into the next."""
    torch.manual_seed(0)
    Qwen3NextForCausalLM(
        Qwen3NextConfig(
            vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=2,
            num_key_value_heads=1, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=2,
            linear_key_head_dim=16, linear_value_head_dim=16, num_experts=2, num_experts_per_tok=1,
            moe_intermediate_size=32, shared_expert_intermediate_size=32, decoder_sparse_step=1,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    policy = Policy(tmp_path)
    assert policy.layout(share=True) == "rows"
    plain = Qwen3NextForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    segments = forked_trial(128, turns=1)[:3]
    for segment, row in zip(segments, score(policy, segments, 1.0, section()), strict=True):
        ids = torch.from_numpy(segment.ids).long()
        with torch.no_grad():
            spread = torch.log_softmax(plain(input_ids=ids[None]).logits[0, :-1], -1)
        wanted = spread.gather(1, ids[1:, None]).squeeze(1).numpy()
        np.testing.assert_allclose(row[1:][segment.mask[1:]], wanted[segment.mask[1:]], atol=1e-4)


def test_a_window_is_not_taken_for_full_attention(tmp_path):
    from transformers import MistralConfig, MistralForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
             "num_attention_heads": 2, "num_key_value_heads": 1}  # fmt: skip
    for window, layout in ((8, "rows"), (None, "forest")):
        MistralForCausalLM(MistralConfig(**shape, sliding_window=window)).save_pretrained(tmp_path / str(window))
        assert Policy(tmp_path / str(window)).layout(share=True) == layout


def test_the_step_says_how_much_was_shared(policy, trial):
    train = section(micro_batch_tokens=100_000)
    train.correction.old = "bypass"
    _, metrics = Gradient(policy, train, 0.9, longest=64).accumulate(trial)
    alone = sum(int(np.flatnonzero(segment.mask)[-1]) for segment in trial)
    assert metrics["step/shared"].value == pytest.approx(1 - pack(trial, 100_000)[0].ids.numel() / alone)


def test_the_entropy_bonus_is_the_gradient_of_the_entropy(policy, trial):
    """Against torch's own, on whole logits."""
    few = [replace(segment, advantage=0.0) for segment in trial[:2]]
    train = section(objective=ObjectiveSection(entropy=0.5))
    policy.model.zero_grad(set_to_none=True)
    _, metrics = Gradient(policy, train, 0.9, longest=64).accumulate(few)
    ours = [p.grad.clone() for p in policy.model.parameters()]
    policy.model.zero_grad(set_to_none=True)
    total, owned = 0.0, Counter()
    for segment in few:
        spread = torch.log_softmax(
            policy.model(input_ids=torch.from_numpy(segment.ids).long()[None]).logits[0, :-1] / 0.9, -1
        )
        entropy = -(spread.exp() * spread).sum(1)[torch.from_numpy(segment.mask[1:])]
        total += float(entropy.detach().sum())
        owned["tokens"] += len(entropy)
        (-0.5 * segment.weight * entropy.mean()).backward()
    assert metrics["step/entropy"].value == pytest.approx(total / owned["tokens"], rel=1e-5)
    same((0.0, [p.grad for p in policy.model.parameters()]), (0.0, ours))
