"""Whatever comes, goes and stands beside a row, its logits are those of a plain forward pass over its ids."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from lego.engine import decoder as module
from lego.engine.decoder import BatchDecoder, Decoder, Row, SerialDecoder, open_decoder
from lego.engine.policy import prove
from lego.errors import EngineError

SMALL = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=512,
    tie_word_embeddings=True,
)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)


def qwen3(tiny: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny)


def qwen3_moe(_: Path) -> PreTrainedModel:
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SMALL, **EXPERTS, num_hidden_layers=2, initializer_range=0.3))


def qwen3_windowed(_: Path) -> PreTrainedModel:
    window = dict(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    return Qwen3ForCausalLM(Qwen3Config(**SMALL, **window, num_hidden_layers=2, initializer_range=0.3))


def qwen3_next(_: Path) -> PreTrainedModel:
    linear = dict(linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8)
    config = Qwen3NextConfig(
        **SMALL, **EXPERTS, **linear, num_hidden_layers=4, shared_expert_intermediate_size=16, initializer_range=0.2
    )
    return Qwen3NextForCausalLM(config)


MODELS = {
    "qwen3": (qwen3, BatchDecoder, 1e-4),
    "qwen3-moe": (qwen3_moe, BatchDecoder, 1e-4),
    "qwen3-windowed": (qwen3_windowed, SerialDecoder, 1e-4),
    "qwen3-next": (qwen3_next, SerialDecoder, 1e-3),
}


@pytest.fixture(params=MODELS)
def served(request: pytest.FixtureRequest, tiny_policy: Path) -> tuple[PreTrainedModel, Decoder, float]:
    make, kind, tolerance = MODELS[request.param]
    torch.manual_seed(5)
    model = make(tiny_policy).eval()
    decoder = open_decoder(model, prefix_bytes=1 << 20)
    assert type(decoder) is kind
    return model, decoder, tolerance


def plain(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


@torch.inference_mode()
def test_random_conversations(served: tuple[PreTrainedModel, Decoder, float], monkeypatch: pytest.MonkeyPatch) -> None:
    model, decoder, tolerance = served
    # Small enough that some groups are split and some prompts come in several passes.
    monkeypatch.setattr(module, "PREFILL_TOKENS", 24)
    rng = random.Random(11)
    conversations: dict[str, list[int]] = {name: [rng.randrange(60) for _ in range(9)] for name in "abcde"}
    for _ in range(40):
        idle = [name for name in conversations if name not in {row.session for row in decoder.rows}]
        if idle and rng.random() < 0.5:
            rows = []
            for name in rng.sample(idle, rng.randint(1, len(idle))):
                added = [rng.randrange(60) for _ in range(rng.choice([1, 3, 30]))]
                # Now and then the harness rewrites its history: only part of the prefix still holds.
                kept = conversations[name][: -rng.randint(1, 5)] if rng.random() < 0.2 else conversations[name]
                rows.append(Row(name, (kept + added)[-120:]))
            for row, logits in zip(rows, decoder.prefill(rows), strict=True):
                torch.testing.assert_close(logits, plain(model, row.ids), atol=tolerance, rtol=tolerance)
        elif decoder.rows:
            for row in decoder.rows:
                row.ids.append(rng.randrange(60))
            for row, logits in zip(decoder.rows, decoder.decode(), strict=True):
                torch.testing.assert_close(logits, plain(model, row.ids), atol=tolerance, rtol=tolerance)
        for row in [row for row in decoder.rows if rng.random() < 0.3]:
            conversations[row.session] = row.ids + [rng.randrange(60)]
            decoder.release(row)
    assert decoder.reused_tokens > 0


@torch.inference_mode()
def test_the_next_turn_feeds_only_what_is_new(served: tuple[PreTrainedModel, Decoder, float]) -> None:
    _, decoder, _ = served
    row = Row("a", list(range(40)))
    decoder.prefill([row])
    decoder.release(row)
    decoder.prefill([Row("a", list(range(50)))])
    assert decoder.reused_tokens == 40


@torch.inference_mode()
def test_a_wrong_cache_is_caught_by_the_proof(
    served: tuple[PreTrainedModel, Decoder, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, decoder, tolerance = served
    assert prove(model, decoder) < tolerance
    assert decoder.rows == []
    honest = decoder.prefill
    monkeypatch.setattr(decoder, "prefill", lambda rows: honest(rows).roll(1, -1))
    with pytest.raises(EngineError, match="does not agree"):
        prove(model, decoder)
