from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM, Qwen3Config, Qwen3ForCausalLM

import lego.trainer.head as head_module
from lego.errors import ConfigError, TrainerError
from lego.trainer.batch import TrainSegment, pack
from lego.trainer.policy import Policy


def made(vocabulary, rows=3, columns=12, seed=0):
    """Segments of random ids, about half of them owned."""
    rng = np.random.default_rng(seed)
    segments = []
    for row in range(rows):
        ids = rng.integers(0, vocabulary, columns + row).astype(np.int32)
        mask = rng.random(len(ids)) < 0.5
        mask[0], mask[3] = False, True
        segments.append(TrainSegment(row, ids, mask, np.zeros(len(ids), np.float32)))
    return segments


def scores(policy, segments, temperature=1.0, entropy=False):
    """Log-probs (or entropies) of the owned ids, segment by segment in the order given."""
    (batch,) = pack(segments, 10_000, policy.layout(share=True))
    result = policy.score(batch, temperature, entropy)
    grid = result.entropy if entropy else result.logp
    assert not grid[~batch.mask].any()
    rows = {index: row[owned] for index, row, owned in zip(batch.index, grid, batch.mask, strict=True)}
    return torch.cat([rows[i] for i in range(len(segments))])


def expected(model, segments, temperature, entropy=False):
    parts = []
    for segment in segments:
        ids = torch.from_numpy(segment.ids).long()
        with torch.no_grad():
            spread = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].double() / temperature, -1)
        owned = torch.from_numpy(segment.mask[1:])
        every = -(spread.exp() * spread).sum(1) if entropy else spread.gather(1, ids[1:, None]).squeeze(1)
        parts.append(every[owned])
    return torch.cat(parts)


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_and_entropies_are_those_of_the_tempered_softmax(tiny_policy, temperature, entropy):
    policy = Policy(tiny_policy)
    reference = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    segments = made(policy.vocabulary)
    with torch.no_grad():
        found = scores(policy, segments, temperature, entropy)
    np.testing.assert_allclose(found, expected(reference, segments, temperature, entropy), atol=1e-5)


@pytest.mark.parametrize("checkpoint_layers", [False, True])
def test_gradients_are_those_of_a_plain_forward_pass(tiny_policy, monkeypatch, checkpoint_layers):
    """Chunked or whole, layers kept or computed again: against logits held and differentiated by torch."""
    segments = made(200)
    plain = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    for segment in segments:
        ids = torch.from_numpy(segment.ids).long()
        spread = torch.log_softmax(plain(input_ids=ids[None]).logits[0, :-1] / 0.8, -1)
        logp = spread.gather(1, ids[1:, None]).squeeze(1)
        (logp[torch.from_numpy(segment.mask[1:])].sum() / 10).backward()
    for budget in (1 << 24, 1 << 11):
        monkeypatch.setattr(head_module, "LOGIT_BUDGET", budget)
        policy = Policy(tiny_policy, checkpoint_layers=checkpoint_layers)
        (scores(policy, segments, 0.8).sum() / 10).backward()
        for (name, p), q in zip(policy.model.named_parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_checkpointed_layers_keep_less_and_drop_nothing_out(tmp_path):
    """Dropout stays off although a checkpointed layer counts as one in training."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, attention_dropout=0.5,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    segments = made(64, rows=4, columns=200)
    kept, values = {}, {}
    for again in (False, True):
        policy, saved = Policy(tmp_path, checkpoint_layers=again), []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, s=saved: (s.append(t.numel()), t)[1], lambda t: t):
            values[again] = scores(policy, segments).detach()
        kept[again] = sum(saved)
    assert torch.equal(values[False], values[True])
    assert kept[True] < kept[False] / 3


def test_a_family_that_scales_its_logits_is_scored_rightly(tmp_path):
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logits_scaling=8.0, initializer_range=0.5,
    )  # fmt: skip
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    policy = Policy(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    segments = made(64)
    for entropy in (False, True):
        with torch.no_grad():
            found = scores(policy, segments, 0.9, entropy)
        np.testing.assert_allclose(found, expected(reference, segments, 0.9, entropy), atol=1e-5)


def test_bfloat16_is_arithmetic_only(tiny_policy):
    policy = Policy(tiny_policy, dtype="bfloat16")
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    segments = made(policy.vocabulary)
    with torch.no_grad():
        half, full = scores(policy, segments), scores(Policy(tiny_policy), segments)
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.1


def test_the_output_layers_gradient_in_half_precision_is_the_same_in_blocks(monkeypatch):
    torch.manual_seed(0)
    states, wanted = torch.randn(9, 16), torch.arange(9)
    gradients = {}
    for block, dtype in [(1 << 14, torch.float32), (1 << 14, torch.bfloat16), (7, torch.bfloat16)]:
        monkeypatch.setattr(head_module, "_BLOCK", block)
        torch.manual_seed(1)
        weight = torch.randn(50, 16, requires_grad=True)
        logp, _ = head_module.head_logprobs(states, weight, None, wanted, 0.8, dtype)
        logp.sum().backward()
        gradients[block, dtype] = weight.grad
    full, half, blocks = gradients.values()
    torch.testing.assert_close(blocks, half)
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


def test_what_is_no_policy_is_refused(tmp_path, tiny_policy):
    with pytest.raises(TrainerError, match="no config.json") as caught:
        Policy(tmp_path)
    assert caught.value.fault == "user"
    (tmp_path / "config.json").write_text((tiny_policy / "config.json").read_text())
    with pytest.raises(TrainerError, match="does not load"):
        Policy(tmp_path)
    with pytest.raises(ConfigError, match="float16"):
        Policy(tiny_policy, dtype="float16")


def test_a_checkpoint_that_lacks_weights_is_refused(tmp_path, tiny_policy):
    from safetensors.torch import load_file, save_file

    (tmp_path / "config.json").write_text((tiny_policy / "config.json").read_text())
    held = load_file(tiny_policy / "model.safetensors")
    del held["model.layers.0.mlp.up_proj.weight"]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match="lacks weights: model.layers.0.mlp.up_proj.weight"):
        Policy(tmp_path)


def test_an_attention_by_name_keeps_to_rows_and_scores_the_same(tiny_policy):
    segments = made(200)
    packed, named = Policy(tiny_policy), Policy(tiny_policy, attention="sdpa")
    assert (packed.layout(share=True), named.layout(share=True)) == ("forest", "rows")
    assert named.model.config._attn_implementation == "sdpa"
    with torch.no_grad():
        torch.testing.assert_close(scores(named, segments), scores(packed, segments), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["flash_attention_2", "flash_attention_3"])
def test_flash_attention_is_refused_in_one_line_where_it_cannot_be(tiny_policy, monkeypatch, name):
    with pytest.raises(ConfigError, match=f"{name} runs on CUDA devices, and this policy is on cpu"):
        Policy(tiny_policy, attention=name, device="cpu")
    # On a device that could, what transformers says of the missing package.
    for module in ("flash_attn", "flash_attn_interface"):
        if find_spec(module):
            pytest.skip(f"{module} is installed")
    policy = Policy(tiny_policy, attention="sdpa", device="cpu")
    monkeypatch.setattr(policy, "device", torch.device("cuda"))
    with pytest.raises(ConfigError, match="cannot be had here: .*installed") as caught:
        policy._keep_to_rows(name)
    assert "\n" not in str(caught.value)


def test_flash_attention_is_given_in_half_precision_alone(tmp_path):
    from lego.config.load import load

    config = tmp_path / "run.yaml"
    config.write_text("run: {name: x}\npolicy: {model: tiny}\n")
    with pytest.raises(ConfigError, match="engine.dtype=bfloat16"):
        load(config, ["train.attention=flash_attention_2"])
    assert load(config, ["train.attention=flash_attention_2", "engine.dtype=bfloat16"]).config.train.attention
