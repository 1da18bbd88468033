"""Anthropic Messages: replies and errors written, streamed and whole; `anthropic_read` reads the requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lego.engine.base import Finish
from lego.proxy import anthropic_read
from lego.proxy.dialect import Ask, Mint, Problem, ProblemKind, Usage
from lego.proxy.reading import Memory
from lego.trajectory.messages import Message, ToolCall
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, Delta, TextDelta, ThinkingDelta

_ERROR_TYPES: Mapping[ProblemKind, str] = {
    "bad_request": "invalid_request_error",
    "wrong_token": "authentication_error",
    "not_found": "not_found_error",
    "context_overflow": "invalid_request_error",
    "too_large": "request_too_large",
    "foreign": "permission_error",
    "engine_fault": "api_error",
    "proxy_fault": "api_error",
    "cap": "invalid_request_error",
    "client_gone": "invalid_request_error",
}


class Anthropic:
    """POST /v1/messages and /v1/messages/count_tokens."""

    name = "anthropic"
    paths: tuple[str, ...] = ("/v1/messages",)
    counters: Mapping[str, Callable[[int], dict[str, Any]]] = {
        "/v1/messages/count_tokens": lambda tokens: {"input_tokens": tokens}
    }

    def read(self, body: Mapping[str, Any], memory: Memory | None = None) -> Ask:
        return anthropic_read.read(body, memory or Memory())

    def writer(self, ask: Ask, mint: Mint, model: str, created: int) -> MessagesWriter:
        return MessagesWriter(mint, model)

    def problem(self, problem: Problem) -> dict[str, Any]:
        message = problem.message
        if problem.kind == "context_overflow":
            # A prompt that fills the context leaves no room for a reply: the longest one is a token shorter.
            message = f"prompt is too long: {problem.asked} tokens > {problem.limit - 1} maximum"
        return {"type": "error", "error": {"type": _ERROR_TYPES[problem.kind], "message": message}, "request_id": None}


class MessagesWriter:
    """One reply as message_start … message_stop events, or as one message.

    Thinking carries the reply's mark as its signature, given when the block ends, as Anthropic does.
    """

    ping = b'event: ping\ndata: {"type": "ping"}\n\n'

    def __init__(self, mint: Mint, model: str) -> None:
        self._mint = mint
        self._model = model
        self._block = -1
        self._open = ""
        self._calls = 0

    def opening(self, prompt_tokens: int) -> bytes:
        message = self._message([], None, Usage(prompt_tokens, 0))
        return _event("message_start", message=message).encode() + self.ping

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        return "".join(self._delta(delta) for delta in deltas).encode()

    def closing(self, finish: Finish, usage: Usage) -> bytes:
        ended = {"stop_reason": _stop_reason(finish, self._calls), "stop_sequence": None}
        last = _event("message_delta", delta=ended, usage=_usage(usage))
        return (self._close() + last + _event("message_stop")).encode()

    def failure(self, problem: Problem) -> bytes:
        error = Anthropic().problem(problem)["error"]
        if problem.status >= 500:
            # In the middle of a stream there is no status to say it: this is the type that means "try again".
            error["type"] = "overloaded_error"
        return _event("error", error=error).encode()

    def whole(self, reply: Message, finish: Finish, usage: Usage) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if reply.reasoning:
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": self._mint.id("sig")})
        if reply.content:
            content.append({"type": "text", "text": reply.content})
        for call in reply.tool_calls:
            content.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)})
        return self._message(content, _stop_reason(finish, len(reply.tool_calls)), usage)

    def _message(self, content: list[dict[str, Any]], stop_reason: str | None, usage: Usage) -> dict[str, Any]:
        return {
            "id": self._mint.id("msg"),
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _delta(self, delta: Delta) -> str:
        if isinstance(delta, TextDelta):
            before = self._begin("text", {"type": "text", "text": ""})
            return before + self._piece("text_delta", text=delta.text)
        if isinstance(delta, ThinkingDelta):
            before = self._begin("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            return before + self._piece("thinking_delta", thinking=delta.text)
        if isinstance(delta, CallStart):
            self._calls += 1
            call = {"type": "tool_use", "id": self._mint.call_id(delta.index), "name": delta.name, "input": {}}
            return self._begin(f"call {delta.index}", call)
        if isinstance(delta, CallArguments):
            return self._piece("input_json_delta", partial_json=delta.text)
        assert isinstance(delta, CallEnd)
        return self._close()

    def _begin(self, kind: str, block: dict[str, Any]) -> str:
        if self._open == kind:
            return ""
        before = self._close()
        self._block += 1
        self._open = kind
        return before + _event("content_block_start", index=self._block, content_block=block)

    def _piece(self, kind: str, **said: str) -> str:
        return _event("content_block_delta", index=self._block, delta={"type": kind, **said})

    def _close(self) -> str:
        if not self._open:
            return ""
        signed = self._piece("signature_delta", signature=self._mint.id("sig")) if self._open == "thinking" else ""
        self._open = ""
        return signed + _event("content_block_stop", index=self._block)


def _event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n"


def _input(call: ToolCall) -> dict[str, Any]:
    """The call's arguments as the object this dialect wants; what is none goes out as it is, under one key."""
    try:
        given = json.loads(call.arguments) if call.arguments.strip() else {}
        json.dumps(given, allow_nan=False)
    except (ValueError, RecursionError):
        given = None
    return given if isinstance(given, dict) else {anthropic_read.UNPARSED: call.arguments}


def _stop_reason(finish: Finish, calls: int) -> str:
    if finish == "stop":
        return "tool_use" if calls else "end_turn"
    return "max_tokens"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
