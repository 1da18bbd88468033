"""A gguf file becomes a policy folder: the same numbers, the same tokens, the same template."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel

from tests.conftest import missing

ROOT = Path(__file__).parents[1]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
WIDTH, INNER, HEADS = 64, 96, 2


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gguf_folder", ROOT / "tools" / "gguf_folder.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_that_is_there_is_left_alone(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert tool.main([str(tmp_path / "none.gguf"), str(tmp_path)]) == 0


def test_a_file_that_is_not_there_is_told_in_one_line(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tool.main([str(tmp_path / "none.gguf"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith("gguf_folder: config: there is no file ")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_no_gguf_is_told_in_one_line(
    tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    assert tool.main([str(tmp_path / "text.gguf"), str(tmp_path / "out")]) == 2
    assert "text.gguf cannot be read: " in capsys.readouterr().err


def test_quantised_weights_tokens_and_template_come_through(tool: ModuleType, tmp_path: Path) -> None:
    try:
        import accelerate  # noqa: F401
        import gguf
    except ImportError as error:
        missing("gguf", f"{error}; pip install 'lego[gguf]'")
    weights = write(gguf, tmp_path / "tiny.gguf")
    assert tool.main([str(tmp_path / "tiny.gguf"), str(tmp_path / "out")]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == "float32"

    from lego.trainer.policy import Policy
    from lego.trajectory.tokenizer import FolderTokenizer

    model = Policy(tmp_path / "out").model
    embedding = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(embedding, weights["token_embd.weight"])
    down = model.base_model.layers[0].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_array_equal(down, weights["blk.0.ffn_down.weight"])
    tokenizer = FolderTokenizer(tmp_path / "out")
    assert tokenizer.chat_template == TEMPLATE and tokenizer.decode(tokenizer.encode("ab<|im_end|>")) == "ab<|im_end|>"


def write(gguf: ModuleType, path: Path) -> dict[str, np.ndarray]:
    """A one-layer Llama with its matrices in Q8_0. Returns the numbers that the file holds."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(ByteLevel.alphabet()), "ab"]
    draws = np.random.default_rng(0)
    shapes = {
        "token_embd.weight": (len(tokens), WIDTH), "output_norm.weight": (WIDTH,), "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.ffn_norm.weight": (WIDTH,), "blk.0.attn_q.weight": (WIDTH, WIDTH), "blk.0.attn_k.weight": (WIDTH, WIDTH),
        "blk.0.attn_v.weight": (WIDTH, WIDTH), "blk.0.attn_output.weight": (WIDTH, WIDTH),
        "blk.0.ffn_gate.weight": (INNER, WIDTH), "blk.0.ffn_up.weight": (INNER, WIDTH),
        "blk.0.ffn_down.weight": (WIDTH, INNER),
    }  # fmt: skip
    out = gguf.GGUFWriter(str(path), "llama")
    out.add_context_length(128)
    out.add_embedding_length(WIDTH)
    out.add_block_count(1)
    out.add_feed_forward_length(INNER)
    out.add_head_count(HEADS)
    out.add_head_count_kv(HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDTH // HEADS)
    out.add_vocab_size(len(tokens))
    out.add_tokenizer_model("gpt2")
    out.add_token_list(tokens)
    out.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    out.add_token_merges(["a b"])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_pad_token_id(2)
    out.add_chat_template(TEMPLATE)
    kept: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        values = draws.standard_normal(shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(values, kind)
        out.add_tensor(name, packed, raw_dtype=kind)
        kept[name] = gguf.quants.dequantize(packed, kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return kept
