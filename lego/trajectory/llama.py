"""Replies of Llama 3: text, or one JSON object that is a call, with no mark around it."""

from __future__ import annotations

from collections.abc import Sequence

from lego.trajectory.arrays import Finish
from lego.trajectory.calls import LlamaReader
from lego.trajectory.decoding import Decoder
from lego.trajectory.messages import Tool
from lego.trajectory.parse import Delta, Reply, Speaker
from lego.trajectory.tokenizer import Tokenizer


class LlamaParser:
    """A reply that begins with a brace is held back until it names a tool; then its arguments stream.

    It is text where it ends and is no call. What follows the one call of a reply is not said, but makes it malformed.
    """

    def __init__(self, tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool]) -> None:
        self._stop_ids = stop_ids
        self._decoder = Decoder(tokenizer)
        self._speaker = Speaker(strip=True)
        self._reader = LlamaReader({tool.name: tool for tool in tools})
        self._begun = False
        self._done = False

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        if not self._done:
            stop = next((at for at, token in enumerate(ids) if token in self._stop_ids), len(ids))
            self._done = stop < len(ids)
            self._say(self._decoder.feed(ids[:stop], last=self._done))
        return self._speaker.take()

    def finish(self, finish: Finish) -> Reply:
        self._say(self._decoder.feed([], last=True))
        self._speaker.close_call()
        return self._speaker.reply()

    def _say(self, text: str) -> None:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
            if text.startswith("{"):
                self._speaker.open_call(self._reader)
        if self._speaker.in_call:
            self._speaker.call(text)
        else:
            self._speaker.text(text)
