"""Tokenizers, loaded without a deep-learning library where the folder allows it."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from lego.errors import RenderError


class Tokenizer(Protocol):
    """What rendering needs of a tokenizer; Hugging Face tokenizers have it, and so has `FolderTokenizer`."""

    name_or_path: str
    unk_token_id: int | None
    eos_token_id: int | None

    def encode(self, text: str, *args: Any, **kwargs: Any) -> list[int]: ...

    def decode(self, token_ids: Any, *args: Any, **kwargs: Any) -> str: ...

    def convert_tokens_to_ids(self, tokens: Any) -> Any: ...


class EncodingCache:
    """The ids of texts that were encoded lately: a conversation that is rendered afresh is mostly one that was rendered
    before, message by message. An encoding depends on nothing but its text, so this is exact. Thread-safe.

    limit: characters of text held; the longest unused goes first.
    """

    def __init__(self, encode: Callable[[str], Sequence[int]], limit: int = 8_000_000) -> None:
        self._encode = encode
        self._limit = limit
        self._held = 0
        self._known: OrderedDict[str, list[int]] = OrderedDict()
        # One object for each id, wherever it occurs: a kept id costs a pointer.
        self._ids: dict[int, int] = {}
        self._lock = Lock()

    def __call__(self, text: str) -> list[int]:
        with self._lock:
            known = self._known.get(text)
            if known is not None:
                self._known.move_to_end(text)
                return known.copy()
        ids = self._encode(text)
        with self._lock:
            if text not in self._known:
                self._known[text] = [self._ids.setdefault(token, token) for token in ids]
                self._held += len(text)
            while self._held > self._limit:
                self._held -= len(self._known.popitem(last=False)[0])
        return list(ids)


class FolderTokenizer:
    """A folder's tokenizer.json through the `tokenizers` library alone: starts in milliseconds, imports no torch."""

    def __init__(self, folder: Path) -> None:
        import tokenizers

        self.name_or_path = str(folder)
        backend = self._backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain = EncodingCache(lambda text: backend.encode(text, add_special_tokens=False).ids)
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text()) if config_file.exists() else {}
        template_file = folder / "chat_template.jinja"
        self.chat_template: str | None = (
            template_file.read_text() if template_file.exists() else config.get("chat_template")
        )
        self.special_tokens_map: dict[str, str] = {
            key: text for key, token in config.items() if key.endswith("_token") and (text := _text(token))
        }
        self.unk_token_id = self._named(config.get("unk_token"))
        self.eos_token_id = self._named(config.get("eos_token"))

    def __len__(self) -> int:
        return int(self._backend.get_vocab_size())

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return list(self._backend.encode(text).ids) if add_special_tokens else self._plain(text)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, str):
            found = self._backend.token_to_id(tokens)
            return self.unk_token_id if found is None else found
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def _named(self, token: Any) -> int | None:
        text = _text(token)
        return self._backend.token_to_id(text) if text else None


def _text(token: Any) -> str:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else ""


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a policy folder, or of a model by name (through transformers).

    Raises RenderError where there is none, or its files are not what they should be.
    """
    folder = Path(path)
    if (folder / "tokenizer.json").is_file():
        try:
            return FolderTokenizer(folder)
        except Exception as error:  # the library raises nothing more particular
            said = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
            raise RenderError(
                f"the tokenizer in {folder} cannot be read: {said}",
                hint="tokenizer.json, tokenizer_config.json and chat_template.jinja must be whole",
                fault="user",
            ) from error
    return load_template_tokenizer(str(path))


def load_template_tokenizer(path: str) -> Any:
    """The same through transformers, with its chat template."""
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, ImportError) as error:
        raise RenderError(
            f"no tokenizer in {path}: {error}",
            hint="policy.model must be a Hugging Face folder that holds tokenizer.json, or a model's name",
            fault="user",
        ) from error


def token_id(tokenizer: Tokenizer, token: str) -> int | None:
    """The id of a token that is one id in this vocabulary, else None."""
    found = tokenizer.convert_tokens_to_ids(token)
    return found if isinstance(found, int) and found != tokenizer.unk_token_id else None
