"""From sampled ids to text, thinking and tool calls, as they stream.

What a parser says is what the harness is sent, so a reply is the sum of its deltas, whether or not it was
streamed. Malformed calls never raise: a call without a readable name becomes text, one with a name keeps its raw
arguments, as a stock server would send them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from lego.trajectory.arrays import Finish
from lego.trajectory.calls import CallReader, CallText, HermesReader
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins; `index` counts the calls of the reply from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments: JSON text."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    index: int


Delta = TextDelta | ThinkingDelta | CallStart | CallArguments | CallEnd


@dataclass(frozen=True)
class Reply:
    """A whole reply. `message` is the sum of all deltas; its tool calls have empty ids (the proxy mints them).

    `malformed` says, one line each, what was wrong with calls that could not be read. `tail` are the deltas that
    were held back until the end: a streaming caller sends them last.
    """

    message: Message
    malformed: tuple[str, ...] = ()
    tail: tuple[Delta, ...] = ()


class StreamParser(Protocol):
    """Parses one reply. Never raises on what a policy may sample."""

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next sampled ids; say what they add. A stop id ends the reply: what follows it is ignored."""
        ...

    def finish(self, finish: Finish) -> Reply:
        """The generation has ended; what was held back is in `Reply.tail`. To be called once."""
        ...


@dataclass(frozen=True)
class Grammar:
    """The marks of a family whose replies are thinking, then text, then calls. None: the family has no such mark.

    `strip`: white space around text and thinking is not part of them.
    """

    stop_ids: frozenset[int]
    think: int | None = None
    think_end: int | None = None
    call: int | None = None
    call_end: int | None = None
    strip: bool = False
    reader: type[CallReader] = HermesReader


_CONTEXT = 16
"""Settled ids that are decoded again with the next ones, at most, before they are cut to the last piece."""


class _Decoder:
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


class _Channel:
    """One kind of text, with the white space around it held back where the grammar does not count it."""

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


class TaggedParser:
    """Streams replies marked by single ids: [thinking] text [calls], as Qwen3 and the demo policy write them.

    Thinking is only what opens the reply (or was opened by the prompt: `thinking`). A call's mark inside open
    thinking is ambiguous until thinking closes, so it is held back until then. Text after the first call is not
    sent, as in the families' own parsers; its tokens are of course kept.
    """

    def __init__(self, tokenizer: Tokenizer, grammar: Grammar, tools: Sequence[Tool], thinking: bool = False) -> None:
        self._tokenizer = tokenizer
        self._grammar = grammar
        marks = (grammar.think, grammar.think_end, grammar.call, grammar.call_end)
        self._special = grammar.stop_ids.union(mark for mark in marks if mark is not None)
        self._tools = {tool.name: tool for tool in tools}
        self._state = "think" if thinking else "start"
        self._run = _Decoder(tokenizer)
        self._blank = ""
        self._held: list[int] = []
        self._text = _Channel(grammar.strip)
        self._thinking = _Channel(grammar.strip)
        self._calls: list[tuple[str, list[str]]] = []
        self._reader: CallReader | None = None
        self._block: list[str] = []
        self._seen_call = False
        self._malformed: list[str] = []
        self._out: list[Delta] = []
        self._done = False

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        plain: list[int] = []
        for token in ids:
            if self._done:
                break
            if token not in self._special:
                plain.append(token)
            elif token in self._grammar.stop_ids:
                self._done = True
            else:
                self._plain(plain)
                plain = []
                self._mark(token)
        self._plain(plain)
        return self._take()

    def finish(self, finish: Finish) -> Reply:
        if self._state == "held":
            held, self._held = self._held, []
            self._begin("text")
            for token in held:
                if token in (self._grammar.call, self._grammar.call_end):
                    self._mark(token)
                else:
                    self._plain([token])
        self._end_run()
        if self._reader is not None:
            self._end_call(closed=False, why="cut by the token limit" if finish == "length" else "not closed")
        if self._blank and not self._grammar.strip:
            self._say_text(self._blank)
        calls = tuple(ToolCall("", name, "".join(parts)) for name, parts in self._calls)
        message = Message("assistant", self._text.text, self._thinking.text or None, calls)
        return Reply(message, tuple(self._malformed), tuple(self._take()))

    def _take(self) -> list[Delta]:
        out, self._out = self._out, []
        return out

    def _begin(self, state: str) -> None:
        self._end_run()
        self._state = state

    def _mark(self, token: int) -> None:
        grammar = self._grammar
        if self._state == "held":
            if token == grammar.think_end:
                held, self._held = self._held, []
                self._state = "think"
                self._plain(held)
                self._begin("text")
            else:
                self._held.append(token)
        elif self._state == "think":
            if token == grammar.think_end:
                self._begin("text")
            elif token == grammar.call:
                self._begin("held")
                self._held.append(token)
            elif token != grammar.think:
                self._plain([token])
        elif self._state == "call":
            if token == grammar.call_end:
                self._begin("text")
                self._end_call(closed=True)
            else:
                self._plain([token])
        elif token == grammar.call:
            self._begin("call")
            self._seen_call = True
            self._block = []
            self._reader = grammar.reader(self._tools)
        elif token == grammar.think and self._opens_thinking():
            self._blank = ""
            self._begin("think")
        else:
            self._plain([token])

    def _opens_thinking(self) -> bool:
        self._end_run()
        return self._state == "start"

    def _plain(self, ids: Sequence[int]) -> None:
        if not ids:
            return
        if self._state == "held":
            self._held.extend(ids)
            return
        if self._state == "think":
            ids = [token for token in ids if token != self._grammar.think]
        self._say(self._run.feed(ids))

    def _end_run(self) -> None:
        self._say(self._run.feed([], last=True))
        self._run = _Decoder(self._tokenizer)

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._state == "think":
            said = self._thinking.feed(text)
            if said:
                self._out.append(ThinkingDelta(said))
        elif self._state == "call":
            self._block.append(text)
            if self._reader is not None:
                self._say_call(self._reader.feed(text))
        elif self._state == "start":
            self._blank += text
            if self._blank.strip():
                text, self._blank, self._state = self._blank, "", "text"
                self._say_text(text)
        elif not self._seen_call:
            self._say_text(text)

    def _say_text(self, text: str) -> None:
        said = self._text.feed(text)
        if said:
            self._out.append(TextDelta(said))

    def _say_call(self, said: CallText) -> None:
        if said.name is not None:
            if self._blank and not self._grammar.strip:
                self._say_text(self._blank)
            self._blank = ""
            self._out.append(CallStart(len(self._calls), said.name))
            self._calls.append((said.name, []))
        if said.arguments:
            name, parts = self._calls[-1]
            parts.append(said.arguments)
            self._out.append(CallArguments(len(self._calls) - 1, said.arguments))

    def _end_call(self, closed: bool, why: str = "") -> None:
        reader, self._reader = self._reader, None
        if reader is None:
            return
        said, fault = reader.end(closed)
        self._say_call(said)
        if not closed:
            fault = f"{fault}; {why}" if fault else why
        if fault:
            self._malformed.append(f"call {len(self._calls) if not reader.named else len(self._calls) - 1}: {fault}")
        if reader.named:
            self._out.append(CallEnd(len(self._calls) - 1))
            return
        blank, self._blank = self._blank, ""
        closing = self._written(self._grammar.call_end) if closed else ""
        self._say_text(blank + self._written(self._grammar.call) + "".join(self._block) + closing)

    def _written(self, mark: int | None) -> str:
        return "" if mark is None else self._tokenizer.decode([mark], skip_special_tokens=False)


class WholeParser:
    """For families without a streaming grammar here: says everything at the end, by the family's own parser."""

    def __init__(self, renderer: Any, tools: Sequence[dict[str, Any]] | None, prompt_ids: Sequence[int]) -> None:
        self._renderer = renderer
        self._tools = tools
        self._prompt_ids = list(prompt_ids)
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        self._ids.extend(ids)
        return []

    def finish(self, finish: Finish) -> Reply:
        return whole_reply(self._renderer.parse_response(self._ids, tools=self._tools, prompt_ids=self._prompt_ids))


def whole_reply(parsed: Any) -> Reply:
    """A `renderers` ParsedResponse as a Reply; calls that are not OK become text."""
    tail: list[Delta] = []
    content: str = parsed.content or ""
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for number, attempt in enumerate(parsed.tool_calls):
        if str(attempt.status) == "ok" and isinstance(attempt.name, str):
            arguments = {} if attempt.arguments is None else attempt.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall("", attempt.name, text))
        else:
            malformed.append(f"call {number}: {attempt.status}")
            content += attempt.raw
    reasoning = parsed.reasoning_content or None
    if reasoning:
        tail.append(ThinkingDelta(reasoning))
    if content:
        tail.append(TextDelta(content))
    for index, call in enumerate(calls):
        tail += [CallStart(index, call.name), CallArguments(index, call.arguments), CallEnd(index)]
    return Reply(Message("assistant", content, reasoning, tuple(calls)), tuple(malformed), tuple(tail))
