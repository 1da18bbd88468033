"""OpenAI Chat Completions: requests read, replies and errors written, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lego.engine.base import Finish
from lego.proxy.dialect import Ask, Mint, Problem, Usage
from lego.proxy.reading import Memory
from lego.trajectory.messages import Message, Role, Tool, ToolCall
from lego.trajectory.parse import CallArguments, CallStart, Delta, TextDelta, ThinkingDelta

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_NOT_WISHES = frozenset({"messages", "tools", "model", "stream", "stream_options", "metadata", "user"})
_ERROR_TYPES = {
    "bad_request": ("invalid_request_error", None),
    "wrong_token": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "unknown_url"),
    "context_overflow": ("invalid_request_error", "context_length_exceeded"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "foreign": ("invalid_request_error", "permission_denied"),
    "engine_fault": ("server_error", "engine_error"),
    "proxy_fault": ("server_error", "proxy_error"),
    "cap": ("invalid_request_error", "trial_limit_reached"),
    "client_gone": ("invalid_request_error", "client_gone"),
}
_DONE = b"data: [DONE]\n\n"
_encode_text = json.dumps


class OpenAIChat:
    """POST /v1/chat/completions."""

    name = "openai_chat"
    paths: tuple[str, ...] = ("/v1/chat/completions", "/chat/completions")
    counters: Mapping[str, Callable[[int], dict[str, Any]]] = {}

    def read(self, body: Mapping[str, Any], memory: Memory | None = None) -> Ask:
        messages = _list(body, "messages")
        if not messages:
            raise _bad("messages", "expected a non-empty array")
        if body.get("n") not in (None, 1):
            raise _bad("n", "it must be 1, one reply is sampled for a request")
        if body.get("functions"):
            raise _bad("functions", "they are not supported, offer tools")
        options = body.get("stream_options")
        return Ask(
            messages=tuple((memory or Memory()).read(messages, _read)),
            tools=_tools(body),
            model=str(body.get("model") or ""),
            stream=bool(body.get("stream")),
            wishes={key: value for key, value in body.items() if key not in _NOT_WISHES and value is not None},
            stream_usage=isinstance(options, Mapping) and bool(options.get("include_usage")),
        )

    def writer(self, ask: Ask, mint: Mint, model: str, created: int) -> ChatWriter:
        return ChatWriter(mint, model, created, ask.stream_usage)

    def problem(self, problem: Problem) -> dict[str, Any]:
        kind, code = _ERROR_TYPES[problem.kind]
        message = problem.message
        param = problem.param
        if problem.kind == "context_overflow":
            message = (
                f"This model's maximum context length is {problem.limit} tokens. However, your messages resulted in "
                f"{problem.asked} tokens. Please reduce the length of the messages."
            )
            param = "messages"
        return {"error": {"message": message, "type": kind, "param": param, "code": problem.code or code}}


class ChatWriter:
    """One reply as `chat.completion.chunk` events, or as one `chat.completion`."""

    ping = b": waiting\n\n"

    def __init__(self, mint: Mint, model: str, created: int, stream_usage: bool) -> None:
        self._mint = mint
        self._stream_usage = stream_usage
        self._calls = 0
        self._head = {"id": f"chatcmpl-{mint.mark}", "created": created, "model": model}
        base = json.dumps({**self._head, "object": "chat.completion.chunk"})[:-1]
        tail = ', "usage": null' if stream_usage else ""
        self._before = base + ', "choices": [{"index": 0, "delta": '
        self._after = ', "logprobs": null, "finish_reason": null}]' + tail + "}"
        self._base = base

    def _event(self, delta: str) -> str:
        return "data: " + self._before + delta + self._after + "\n\n"

    def opening(self, prompt_tokens: int) -> bytes:
        return self._event('{"role": "assistant", "content": ""}').encode()

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        events = []
        for delta in deltas:
            if isinstance(delta, TextDelta):
                events.append(self._event('{"content": ' + _encode_text(delta.text) + "}"))
            elif isinstance(delta, ThinkingDelta):
                events.append(self._event('{"reasoning_content": ' + _encode_text(delta.text) + "}"))
            elif isinstance(delta, CallStart):
                self._calls += 1
                call = {
                    "index": delta.index,
                    "id": self._mint.call_id(delta.index),
                    "type": "function",
                    "function": {"name": delta.name, "arguments": ""},
                }
                events.append(self._event('{"tool_calls": [' + json.dumps(call) + "]}"))
            elif isinstance(delta, CallArguments):
                events.append(
                    self._event(
                        f'{{"tool_calls": [{{"index": {delta.index}, "function": {{"arguments": '
                        + _encode_text(delta.text)
                        + "}}]}"
                    )
                )
        return "".join(events).encode()

    def closing(self, finish: Finish, usage: Usage) -> bytes:
        reason = _finish_reason(finish, self._calls)
        tail = ', "usage": null' if self._stream_usage else ""
        choice = f'{{"index": 0, "delta": {{}}, "logprobs": null, "finish_reason": "{reason}"}}'
        last = f'{self._base}, "choices": [{choice}]'
        events = f"data: {last}{tail}}}\n\n"
        if self._stream_usage:
            events += f'data: {self._base}, "choices": [], "usage": {json.dumps(_usage(usage))}}}\n\n'
        return events.encode() + _DONE

    def failure(self, problem: Problem) -> bytes:
        return f"data: {json.dumps(OpenAIChat().problem(problem))}\n\n".encode()

    def whole(self, reply: Message, finish: Finish, usage: Usage) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": reply.content, "refusal": None}
        if reply.reasoning is not None:
            message["reasoning_content"] = reply.reasoning
        if reply.tool_calls:
            message["content"] = reply.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in reply.tool_calls
            ]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": _finish_reason(finish, len(reply.tool_calls)),
        }
        return {**self._head, "object": "chat.completion", "choices": [choice], "usage": _usage(usage)}


def _finish_reason(finish: Finish, calls: int) -> str:
    if finish == "stop":
        return "tool_calls" if calls else "stop"
    return "length"


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _list(body: Mapping[str, Any], key: str) -> list[Any]:
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _bad(key, "expected an array")
    return value


def _tools(body: Mapping[str, Any]) -> tuple[Tool, ...]:
    tools = []
    for i, entry in enumerate(_list(body, "tools")):
        where = f"tools[{i}]"
        function = entry.get("function") if isinstance(entry, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _bad(where, "expected a function with a name")
        parameters = function.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise _bad(where, "the function's parameters must be an object")
        tools.append(Tool(function["name"], str(function.get("description") or ""), parameters))
    return tuple(tools)


def _read(entry: Any, index: int) -> tuple[Message]:
    return (_message(entry, index),)


def _message(entry: Any, index: int) -> Message:
    if not isinstance(entry, Mapping):
        raise _bad(f"messages[{index}]", "expected an object")
    role = _ROLES.get(str(entry.get("role")))
    if role is None:
        raise _bad(f"messages[{index}].role", f"{entry.get('role')!r} is not a role")
    content = entry.get("content")
    if not isinstance(content, str):
        content = _joined(content, f"messages[{index}].content")
    name = entry.get("name")
    name = name if isinstance(name, str) else None
    if role == "assistant":
        if entry.get("function_call"):
            raise _bad(f"messages[{index}].function_call", "it is not supported, say tool_calls")
        reasoning = entry.get("reasoning_content") or entry.get("reasoning")
        return Message(
            role,
            content,
            reasoning if isinstance(reasoning, str) else None,
            _tool_calls(entry, index) if entry.get("tool_calls") else (),
            name=name,
        )
    call_id = entry.get("tool_call_id") if role == "tool" else None
    return Message(role, content, tool_call_id=str(call_id) if call_id else None, name=name)


def _joined(content: Any, where: str) -> str:
    """A list of text parts joined by newlines, as servers that feed string templates do."""
    if content is None:
        return ""
    if not isinstance(content, list):
        raise _bad(where, "expected a string or an array")
    texts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, Mapping) else part
        if not isinstance(text, str) or kind not in (None, "text", "refusal", "input_text", "output_text"):
            raise _bad(where, f"part {i} is {kind!r}, and this model takes text only")
        texts.append(text)
    return "\n".join(texts)


def _tool_calls(entry: Mapping[str, Any], index: int) -> tuple[ToolCall, ...]:
    where = f"messages[{index}].tool_calls"
    if not isinstance(entry["tool_calls"], list):
        raise _bad(where, "expected an array")
    calls = []
    for i, call in enumerate(entry["tool_calls"]):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise _bad(f"{where}[{i}]", "expected a function with a name")
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        calls.append(ToolCall(str(call.get("id") or ""), function["name"], arguments))
    return tuple(calls)


def _bad(param: str, message: str) -> Problem:
    return Problem("bad_request", f"Invalid value for '{param}': {message}.", param=param)
