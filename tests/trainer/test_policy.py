import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM

import lego.trainer.policy as policy_module
from lego.errors import ConfigError, TrainerError
from lego.trainer.policy import Policy


def grid(vocabulary, rows=3, columns=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (rows, columns), generator=generator)
    mask = torch.rand((rows, columns), generator=generator) < 0.5
    mask[:, 0], mask[:, 3] = False, True
    return ids, mask


def expected(model, ids, mask, temperature):
    with torch.no_grad():
        logits = model(input_ids=ids).logits.double() / temperature
    every = torch.log_softmax(logits[:, :-1], -1).gather(2, ids[:, 1:, None]).squeeze(2)
    return torch.where(mask[:, 1:], every, 0.0)


def test_log_probs_are_those_of_the_tempered_softmax(tiny_policy):
    policy = Policy(tiny_policy)
    reference = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    ids, mask = grid(policy.vocabulary)
    for temperature in (1.0, 0.7):
        with torch.no_grad():
            logp = policy.logprobs(ids, mask, temperature)
        assert not logp[~mask].any()
        np.testing.assert_allclose(logp[:, 1:], expected(reference, ids, mask, temperature), atol=1e-5)


def test_chunks_change_neither_value_nor_gradient(tiny_policy, monkeypatch):
    ids, mask = grid(256)
    results = []
    for budget in (1 << 26, 1 << 11):
        monkeypatch.setattr(policy_module, "LOGIT_BUDGET", budget)
        policy = Policy(tiny_policy)
        logp = policy.logprobs(ids, mask, 0.8)
        (logp.sum() / 10).backward()
        results.append((logp.detach(), policy.model.get_input_embeddings().weight.grad))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)


def test_a_family_that_scales_its_logits_is_scored_rightly(tmp_path):
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, logits_scaling=8.0, initializer_range=0.5,
    )  # fmt: skip
    GraniteForCausalLM(config).save_pretrained(tmp_path)
    policy = Policy(tmp_path)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids, mask = grid(64)
    with torch.no_grad():
        np.testing.assert_allclose(
            policy.logprobs(ids, mask, 1.0)[:, 1:], expected(reference, ids, mask, 1.0), atol=1e-5
        )


def test_bfloat16_is_arithmetic_only(tiny_policy):
    policy = Policy(tiny_policy, dtype="bfloat16")
    assert {p.dtype for p in policy.model.parameters()} == {torch.float32}
    ids, mask = grid(policy.vocabulary)
    with torch.no_grad():
        half, full = policy.logprobs(ids, mask, 1.0), Policy(tiny_policy).logprobs(ids, mask, 1.0)
    assert half.dtype == torch.float32
    assert 0 < (half - full).abs().max() < 0.1


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
