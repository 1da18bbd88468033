"""Text from ids as they come."""

from __future__ import annotations

from collections.abc import Sequence

from lego.trajectory.tokenizer import Tokenizer

_CONTEXT = 16
"""Settled ids that are decoded again with the next ones, at most, before they are cut to the last piece."""


class Decoder:
    """Incremental decoding: text comes out once no later id can change it (a character may span several ids)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._settled = 0
        self._prefix = ""

    def feed(self, ids: Sequence[int], last: bool = False) -> str:
        self._ids.extend(ids)
        if len(self._ids) == self._settled:
            return ""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        if text.endswith("\ufffd") and not last:
            return ""
        new, self._prefix = text[len(self._prefix) :], text
        if len(self._ids) > _CONTEXT:
            # The last settled ids stay as context: some decoders join words by what stands before.
            self._ids = self._ids[self._settled :]
            self._prefix = self._tokenizer.decode(self._ids, skip_special_tokens=False)
        self._settled = len(self._ids)
        return new


class Channel:
    """One kind of text, with the white space around it held back where it does not count (`strip`)."""

    def __init__(self, strip: bool) -> None:
        self._strip = strip
        self._held = ""
        self.parts: list[str] = []

    def feed(self, text: str) -> str:
        """What may be said now."""
        if self._strip:
            text = self._held + text
            if not self.parts:
                text = text.lstrip()
            kept = text.rstrip()
            self._held = text[len(kept) :]
            text = kept
        if text:
            self.parts.append(text)
        return text

    @property
    def text(self) -> str:
        return "".join(self.parts)


def held_back(text: str, *marks: str) -> int:
    """How many characters at the end of `text` could be the beginning of a mark."""
    longest = max(len(mark) for mark in marks) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(mark.startswith(text[-size:]) for mark in marks):
            return size
    return 0
