"""Encodings that are kept: the same ids, and no more text held than asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import RenderError
from lego.trajectory.tokenizer import EncodingCache, load_tokenizer
from tests._tiny import tiny_policy
from tests.trajectory._support import tokenizer

__all__ = ["tiny_policy"]


def codes(text: str) -> list[int]:
    return [ord(char) for char in text]


@given(st.lists(st.text("abc", max_size=4), max_size=40), st.integers(0, 12))
def test_a_kept_encoding_is_the_encoding(texts: list[str], limit: int) -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return codes(text)

    cached = EncodingCache(encode, limit)
    for text in texts:
        ids = cached(text)
        assert ids == codes(text)
        ids.append(-1)
    assert len(asked) >= len({text for text in texts if text})


def test_the_text_unused_longest_goes_first() -> None:
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return codes(text)

    cached = EncodingCache(encode, limit=6)
    for text in ("aaa", "bbb", "aaa", "ccc", "aaa", "bbb", "d" * 7, "ccc"):
        cached(text)
    assert asked == ["aaa", "bbb", "ccc", "bbb", "d" * 7, "ccc"]


@given(st.text(max_size=30))
def test_a_folder_tokenizer_says_the_same_twice(text: str) -> None:
    fresh = tokenizer()._backend.encode(text, add_special_tokens=False).ids
    assert tokenizer().encode(text) == tokenizer().encode(text) == fresh


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
@pytest.mark.parametrize("data", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_files_that_are_broken_are_one_line(tiny_policy: Path, tmp_path: Path, name: str, data: bytes) -> None:
    for file in tiny_policy.glob("*token*"):
        shutil.copy(file, tmp_path)
    (tmp_path / name).write_bytes(data)
    if name == "chat_template.jinja" and data.isascii():
        load_tokenizer(tmp_path)  # any text may be a template
        return
    with pytest.raises(RenderError, match="cannot be read") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in caught.value.message and caught.value.fault == "user"
