"""From sampled ids to text, thinking and tool calls, as they stream.

What a parser says is what the harness is sent, so a reply is the sum of its deltas, whether or not it was
streamed. Malformed calls never raise: a call without a readable name becomes text, one with a name keeps its raw
arguments, as a stock server would send them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lego.trajectory.arrays import Finish
from lego.trajectory.calls import CallReader, CallText, HermesReader
from lego.trajectory.decoding import Channel, Decoder
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


class Speaker:
    """What a reply says: its deltas as they come, and the message that they add up to.

    strip: white space around text and thinking is not part of them.
    """

    def __init__(self, strip: bool) -> None:
        self._text = Channel(strip)
        self._thinking = Channel(strip)
        self._calls: list[tuple[str, list[str]]] = []
        self._malformed: list[str] = []
        self._reader: CallReader | None = None
        self._block: list[str] = []
        self._out: list[Delta] = []

    @property
    def in_call(self) -> bool:
        return self._reader is not None

    def text(self, text: str) -> None:
        said = self._text.feed(text)
        if said:
            self._out.append(TextDelta(said))

    def thinking(self, text: str) -> None:
        said = self._thinking.feed(text)
        if said:
            self._out.append(ThinkingDelta(said))

    def open_call(self, reader: CallReader, mark: str = "") -> None:
        """A call begins. `mark` is how its beginning is written, for a call that turns out to be text."""
        self._reader = reader
        self._block = [mark]

    def call(self, text: str) -> None:
        """The next text of the open call."""
        self._block.append(text)
        if self._reader is not None:
            self._say(self._reader.feed(text))

    def aside(self, text: str) -> None:
        """Text of the open call that its reader has no use for."""
        self._block.append(text)

    def close_call(self, closed: bool = True, mark: str = "", finish: Finish = "stop") -> None:
        """The open call ends, by its own `mark` or, not `closed`, with the reply or by force."""
        reader, self._reader = self._reader, None
        if reader is None:
            return
        said, fault = reader.end(closed)
        self._say(said)
        if not closed:
            why = "cut by the token limit" if finish == "length" else "not closed"
            fault = f"{fault}; {why}" if fault else why
        if fault:
            self.fault(fault, len(self._calls) - reader.named)
        if reader.named:
            self._out.append(CallEnd(len(self._calls) - 1))
        else:
            self.text("".join([*self._block, mark]))

    def fault(self, fault: str, number: int) -> None:
        self._malformed.append(f"call {number}: {fault}")

    def take(self) -> list[Delta]:
        """What has been said since this was last asked."""
        out, self._out = self._out, []
        return out

    def reply(self) -> Reply:
        calls = tuple(ToolCall("", name, "".join(parts)) for name, parts in self._calls)
        message = Message("assistant", self._text.text, self._thinking.text or None, calls)
        return Reply(message, tuple(self._malformed), tuple(self.take()))

    def _say(self, said: CallText) -> None:
        if said.name is not None:
            self._out.append(CallStart(len(self._calls), said.name))
            self._calls.append((said.name, []))
        if said.arguments:
            self._calls[-1][1].append(said.arguments)
            self._out.append(CallArguments(len(self._calls) - 1, said.arguments))


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
        self._run = Decoder(tokenizer)
        self._speaker = Speaker(grammar.strip)
        self._blank = ""
        self._held: list[int] = []
        self._seen_call = False
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
        return self._speaker.take()

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
        if self._speaker.in_call:
            self._speaker.close_call(closed=False, finish=finish)
        self._say_blank()
        return self._speaker.reply()

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
                self._speaker.close_call(mark=self._written(token))
            else:
                self._plain([token])
        elif token == grammar.call:
            self._begin("call")
            self._say_blank()
            self._seen_call = True
            self._speaker.open_call(grammar.reader(self._tools), self._written(token))
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
        self._run = Decoder(self._tokenizer)

    def _say(self, text: str) -> None:
        if not text:
            return
        if self._state == "think":
            self._speaker.thinking(text)
        elif self._state == "call":
            self._speaker.call(text)
        elif self._state == "start":
            self._blank += text
            if self._blank.strip():
                self._state = "text"
                self._say_blank()
        elif not self._seen_call:
            self._speaker.text(text)

    def _say_blank(self) -> None:
        blank, self._blank = self._blank, ""
        self._speaker.text(blank)

    def _written(self, mark: int) -> str:
        return self._tokenizer.decode([mark], skip_special_tokens=False)
