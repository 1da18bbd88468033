"""Replies of GPT-OSS: messages on channels, in OpenAI's harmony format."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lego.trajectory.arrays import Finish
from lego.trajectory.calls import CallText
from lego.trajectory.decoding import Decoder
from lego.trajectory.parse import Delta, Reply, Speaker
from lego.trajectory.tokenizer import Tokenizer, token_id

_RECIPIENT = re.compile(r"to=([^\s<]+)")
_NAMESPACE = "functions."


@dataclass(frozen=True)
class HarmonyMarks:
    """The ids of `<|start|>` and the other marks; None where the vocabulary has no such id."""

    start: int | None
    message: int | None
    channel: int | None
    end: int | None
    call: int | None
    end_of_turn: int | None


def harmony_marks(tokenizer: Tokenizer) -> HarmonyMarks:
    names = ("start", "message", "channel", "end", "call", "return")
    return HarmonyMarks(*(token_id(tokenizer, f"<|{name}|>") for name in names))


class NamedReader:
    """A call whose name stands before its text: the text is its arguments, as sampled."""

    def __init__(self, name: str) -> None:
        self.named = bool(name)
        self._name: str | None = name or None
        self._arguments: list[str] = []

    def feed(self, text: str) -> CallText:
        self._arguments.append(text)
        name, self._name = self._name, None
        return CallText(name, text) if self.named else CallText()

    def end(self, closed: bool) -> tuple[CallText, str]:
        name, self._name = self._name, None
        if not self.named:
            return CallText(), "no name"
        try:
            json.loads("".join(self._arguments))
        except (ValueError, RecursionError):
            return CallText(name), "invalid JSON"
        return CallText(name), ""


class HarmonyParser:
    """What is on the analysis channel is thinking, what is for a function is a call, what else is on the final or the
    commentary channel is text; other messages are not said.

    prompt_tail: the last ids of the prompt. They hold the header of the message that the reply begins in, unless it
    begins with a header of its own. A reply that has neither is text.
    """

    def __init__(self, tokenizer: Tokenizer, marks: HarmonyMarks, prompt_tail: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        self._speaker = Speaker(strip=True)
        self._run = Decoder(tokenizer)
        self._header = _open_header(list(prompt_tail), marks)
        self._state = "begin"
        self._body = "nothing"
        self._done = False

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        for token in ids:
            if self._state == "begin":
                self._begin(token)
            text_ends = self._state == "text" and token in (self._marks.call, self._marks.end_of_turn)
            self._done = self._done or token == self._marks.end_of_turn or text_ends
            if self._done:
                break
            self._take(token)
        return self._speaker.take()

    def finish(self, finish: Finish) -> Reply:
        self._end_body(closed=False, finish=finish)
        return self._speaker.reply()

    def _begin(self, first: int) -> None:
        if first == self._marks.start:
            self._state = "between"
        elif self._header is None:
            self._state, self._body = "text", "text"
        else:
            self._open_body(self._header)

    def _take(self, token: int) -> None:
        marks = self._marks
        if self._state == "between":
            if token == marks.start:
                self._state, self._header = "header", []
        elif self._state == "header" and self._header is not None:
            if token == marks.message:
                self._open_body(self._header)
            else:
                self._header.append(token)
        elif self._state == "body" and token in (marks.start, marks.end, marks.call):
            self._end_body(closed=token != marks.start)
            self._state, self._header = ("header", []) if token == marks.start else ("between", None)
        else:
            self._say(self._run.feed([token]))

    def _open_body(self, header: list[int]) -> None:
        self._state = "body"
        text = self._decode(header)
        channel = header.index(self._marks.channel) if self._marks.channel in header else len(header)
        words = self._decode(header[channel + 1 :]).split()
        recipient = _RECIPIENT.search(text)
        if recipient and recipient.group(1).startswith(_NAMESPACE):
            self._body = "call"
            self._speaker.open_call(NamedReader(recipient.group(1).removeprefix(_NAMESPACE)))
        else:
            kinds: Mapping[str, str] = {"analysis": "thinking", "final": "text", "commentary": "text"}
            self._body = kinds.get(words[0], "nothing") if words else "nothing"

    def _end_body(self, closed: bool, finish: Finish = "stop") -> None:
        self._say(self._run.feed([], last=True))
        self._run = Decoder(self._tokenizer)
        self._speaker.close_call(closed, finish=finish)
        self._body = "nothing"

    def _say(self, text: str) -> None:
        if self._body == "call":
            self._speaker.call(text)
        elif self._body == "thinking":
            self._speaker.thinking(text)
        elif self._body == "text":
            self._speaker.text(text)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""


def _open_header(prompt_tail: list[int], marks: HarmonyMarks) -> list[int] | None:
    """The header of the prompt's last message, from its start mark to the mark of its text."""
    for at in range(len(prompt_tail) - 1, -1, -1):
        if prompt_tail[at] == marks.start:
            tail = prompt_tail[at + 1 :]
            return tail[: tail.index(marks.message)] if marks.message in tail else None
    return None
