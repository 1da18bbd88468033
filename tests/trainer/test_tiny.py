from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from lego.trainer.tiny import CONTEXT, SPECIAL_TOKENS, VOCABULARY
from tests._tiny import make_policy

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("tiny") / "policy", seed=3)


@pytest.fixture(scope="module")
def tokenizer(policy: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(policy)


TEXT = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from(" \t\n\r<=>é漢|")), max_size=60)


@given(TEXT)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_text_comes_back_exactly(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text


def test_digits_signs_and_indentation_stand_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert pieces("127") == ["1", "2", "7"]
    assert pieces("<=") == ["<", "="]
    assert pieces("\n    while i") == ["\n", "    ", "while", " i"]


def test_special_tokens_are_single_ids_of_the_qwen3_names(tokenizer: PreTrainedTokenizerBase) -> None:
    for number, token in enumerate(SPECIAL_TOKENS):
        assert tokenizer.encode(token, add_special_tokens=False) == [number]
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"


def test_the_model_is_small_tied_and_stock(policy: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(policy)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert 0.7e6 < model.num_parameters() < 1.1e6
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert len(tokenizer) == model.config.vocab_size <= VOCABULARY
    assert model.config.max_position_embeddings == CONTEXT
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_seed_decides_the_weights_and_nothing_else(policy: Path, tmp_path: Path) -> None:
    same, other = make_policy(tmp_path / "same", seed=3), make_policy(tmp_path / "other", seed=4)
    for name in FILES:
        assert (same / name).read_bytes() == (policy / name).read_bytes()
        assert ((other / name).read_bytes() == (policy / name).read_bytes()) == (name != "model.safetensors")
