"""The digest of a policy folder: what was sampled from, by content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lego.engine.adapter import ADAPTER_CONFIG, ADAPTER_FOLDER, ADAPTER_WEIGHTS, BASE_FILE, WEIGHT_SUFFIXES, unmerged
from lego.errors import EngineError

# Everything that decides which ids mean what and how probable they are; optimizer state and notes do not.
_OTHERS = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
}


def folder_digest(path: str | Path) -> str:
    """sha256 (hex) over names and contents of a Hugging Face folder's weights, tokenizer and config. Where an adapter
    stands in the place of weights, over it and the digest of its base.

    Raises EngineError when the folder holds no config.json or no weights.
    """
    folder = Path(path)
    files = sorted(f for f in folder.glob("*") if f.is_file() and (f.suffix in WEIGHT_SUFFIXES or f.name in _OTHERS))
    base = unmerged(folder)
    if base:
        files += [folder / ADAPTER_FOLDER / ADAPTER_CONFIG, folder / ADAPTER_FOLDER / ADAPTER_WEIGHTS]
    if not (folder / "config.json").is_file() or not any(f.suffix in WEIGHT_SUFFIXES for f in files):
        raise EngineError(
            f"{folder} is not a policy: it needs config.json and weights",
            hint="policy.model must name a Hugging Face folder",
            fault="user",
        )
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            content = hashlib.file_digest(stream, "sha256").hexdigest()
        whole.update(f"{file.name}\0{content}\n".encode())
    if base:
        # Its path is where the base happens to lie.
        whole.update(f"{BASE_FILE}\0{base.digest}\n".encode())
    return whole.hexdigest()
