"""Stand-ins for the proxy's neighbours: an engine that plays turns on command, and a one-character-one-id format."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import httpx2
import numpy as np
from openai import AsyncOpenAI

from lego.engine.base import EngineStats, FloatArray, GenerationRequest, IntArray, PolicyRef, Sampled
from lego.errors import EngineError, RenderError
from lego.proxy.session import Session
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, Delta, Reply, TextDelta, ThinkingDelta

BEGIN, END, CALL, CALL_END, THINK, THINK_END = range(1, 7)


def ids(text: str) -> list[int]:
    """`<`, `>` open and close a tool call, `[` and `]` thinking, `|` ends the reply; the rest is itself."""
    special = {"<": CALL, ">": CALL_END, "[": THINK, "]": THINK_END, "|": END}
    return [special.get(c, ord(c)) for c in text]


class LetterParser:
    def __init__(self) -> None:
        self._mode: Literal["text", "think", "name", "arguments"] = "text"
        self._text, self._reasoning, self._name = "", "", ""
        self._calls: list[ToolCall] = []

    def feed(self, new: Sequence[int]) -> list[Delta]:
        deltas: list[Delta] = []
        for i in new:
            if i == CALL:
                self._mode, self._name = "name", ""
            elif i == CALL_END:
                deltas.append(CallEnd(len(self._calls) - 1))
                self._mode = "text"
            elif i == THINK:
                self._mode = "think"
            elif i == THINK_END:
                self._mode = "text"
            elif i == END:
                break
            elif self._mode == "name":
                if chr(i) == "\n":
                    self._calls.append(ToolCall("", self._name, ""))
                    deltas.append(CallStart(len(self._calls) - 1, self._name))
                    self._mode = "arguments"
                self._name += chr(i)
            elif self._mode == "arguments":
                self._calls[-1] = replace(self._calls[-1], arguments=self._calls[-1].arguments + chr(i))
                deltas.append(CallArguments(len(self._calls) - 1, chr(i)))
            elif self._mode == "think":
                self._reasoning += chr(i)
                deltas.append(ThinkingDelta(chr(i)))
            else:
                self._text += chr(i)
                deltas.append(TextDelta(chr(i)))
        return deltas

    def finish(self, finish: str) -> Reply:
        tail: tuple[Delta, ...] = ()
        malformed: tuple[str, ...] = ()
        if self._mode == "name":
            self._text += self._name
            tail, malformed = (TextDelta(self._name),), ("a call without arguments",)
        message = Message("assistant", self._text, self._reasoning or None, tuple(self._calls))
        return Reply(message, malformed, tail)


class LetterRendering:
    """BEGIN role newline text END, one id a character."""

    name = "letters"
    stop_ids = (END,)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        out: list[int] = []
        for message in messages:
            if "\x07" in message.content:
                raise RenderError("no bells")
            out += [BEGIN, *map(ord, message.role + "\n"), *map(ord, message.content)]
            for call in message.tool_calls:
                out += [CALL, *map(ord, f"{call.name}\n{call.arguments}"), CALL_END]
            out.append(END)
        return [*out, BEGIN, *map(ord, "assistant\n")]

    def named(self, messages: Sequence[Message]) -> Sequence[Message]:
        return messages

    def render_spliced(
        self, messages: Sequence[Message], tools: Sequence[Tool], raw: Mapping[int, IntArray]
    ) -> tuple[list[int], int]:
        return self.render(messages, tools), 0

    def extend(
        self, prompt_ids: IntArray, completion_ids: IntArray, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        closed = len(completion_ids) > 0 and int(completion_ids[-1]) == END
        return ([] if closed else [END]) + self.render(new_messages, tools)

    def encode_reply(self, before: Sequence[Message], reply: Message, tools: Sequence[Tool]) -> list[int]:
        return ids(reply.content + "|")

    def parser(self, prompt_ids: Sequence[int] | IntArray, tools: Sequence[Tool]) -> LetterParser:
        return LetterParser()

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Tool]) -> Reply:
        parser = LetterParser()
        parser.feed(completion_ids)
        return parser.finish("stop")

    def decode(self, all_ids: Sequence[int] | IntArray) -> str:
        return "".join(chr(int(i)) for i in all_ids)


@dataclass
class Turn:
    """One generation: `text` (see `ids`) or `raw` ids, in pieces; the engine waits for `gate` before piece `gated`."""

    text: str
    pieces: int = 3
    gate: asyncio.Event | None = None
    gated: int = 0
    fail: str = ""
    raw: Sequence[int] | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)


class PlayEngine:
    """Plays turns in the order requests come, each id with log-prob -0.5; cuts at max_tokens."""

    sampler: Literal["policy", "script"] = "policy"

    def __init__(self, *turns: Turn | str) -> None:
        self.policy_version = 0
        self.turns = [turn if isinstance(turn, Turn) else Turn(turn) for turn in turns]
        self.requests: list[GenerationRequest] = []
        self.ended: list[str] = []
        self.cancelled = 0

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        self.requests.append(request)
        if not self.turns:
            raise EngineError("nothing left to play")
        turn = self.turns.pop(0)
        whole = ids(turn.text) if turn.raw is None else list(turn.raw)
        out = whole[: request.sampling.max_tokens]
        size = max(1, -(-len(out) // turn.pieces))
        done = False
        try:
            for number, begin in enumerate(range(0, len(out), size)):
                if turn.gate is not None and number == turn.gated:
                    turn.reached.set()
                    await turn.gate.wait()
                if turn.fail and number == turn.gated:
                    done = True
                    raise EngineError(turn.fail)
                piece = out[begin : begin + size]
                last = begin + size >= len(out)
                done = last
                finish: Any = ("stop" if len(out) == len(whole) else "length") if last else None
                yield Sampled(piece, [-0.5] * len(piece), finish)
                await asyncio.sleep(0)
        finally:
            self.cancelled += not done

    async def score(self, all_ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        return np.full(len(all_ids) - start, -0.5, np.float32)

    async def load(self, policy: PolicyRef) -> None:
        self.policy_version = policy.version

    def end_session(self, session: str) -> None:
        self.ended.append(session)

    def stats(self) -> EngineStats:
        return EngineStats()

    async def close(self) -> None:
        pass


def transport(path: Path) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(path)), base_url="http://lego", timeout=30.0)


def client(session: Session, token: str | None = None, http: httpx2.AsyncClient | None = None) -> AsyncOpenAI:
    """The official client on the session's socket; it never tries again by itself."""
    return AsyncOpenAI(
        base_url="http://lego/v1",
        api_key=session.token if token is None else token,
        max_retries=0,
        http_client=transport(session.socket_path) if http is None else http,
    )
