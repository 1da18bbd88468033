"""A tiny policy made on the spot: a randomly initialised Qwen3 and a tokenizer trained on a corpus.

It knows nothing until it is taught (`lego sft`); it is small enough to be taught, sampled and trained on a laptop.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
"""Single ids, in this order from 0; the names are Qwen3's."""

VOCABULARY = 512
CONTEXT = 4096
LAYERS = 4
SPREAD = 0.02

# Words with their leading space, single digits, single signs, newlines, runs of blanks: what a policy this small
# must copy and compare (an operator, a number, an indentation) is never fused with its neighbours.
_PIECES = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\r?\n| +(?=[^\s])|\s"


def make_tiny(
    path: Path,
    seed: int,
    corpus: Iterable[str],
    *,
    vocabulary: int = VOCABULARY,
    context: int = CONTEXT,
    layers: int = LAYERS,
    spread: float = SPREAD,
) -> None:
    """Write a Hugging Face folder at `path`: Qwen3ForCausalLM of about 0.9M parameters (float32, tied embeddings)
    with a context of `context` tokens, and a byte-level BPE tokenizer of at most `vocabulary` ids that gives every
    text back exactly.

    spread: standard deviation of the random weights. The same arguments give the same files. The corpus decides only
    the tokenizer's merges.
    """
    path.mkdir(parents=True, exist_ok=True)
    size = _write_tokenizer(path, corpus, vocabulary, context)
    _write_model(path, seed, size, context, layers, spread)


def _write_tokenizer(path: Path, corpus: Iterable[str], vocabulary: int, context: int) -> int:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.save(str(path / "tokenizer.json"))
    # PreTrainedTokenizerFast takes tokenizer.json as it stands; Qwen's own class would lay its normaliser over it.
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": context,
            "clean_up_tokenization_spaces": False,
        },
    )
    return int(tokenizer.get_vocab_size())


def _write_model(path: Path, seed: int, vocabulary: int, context: int, layers: int, spread: float) -> None:
    import torch
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    pad, end = SPECIAL_TOKENS.index("<|endoftext|>"), SPECIAL_TOKENS.index("<|im_end|>")
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=context,
        initializer_range=spread,
        tie_word_embeddings=True,
        use_cache=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.save_pretrained(path)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
