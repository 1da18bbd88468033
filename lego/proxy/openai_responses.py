"""OpenAI Responses: replies and errors written, streamed and whole; `responses_read` reads the requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lego.engine.base import Finish
from lego.proxy import responses_read
from lego.proxy.dialect import Ask, Mint, Problem, Usage
from lego.proxy.openai_chat import OpenAIChat
from lego.proxy.reading import Memory
from lego.proxy.seal import seal
from lego.trajectory.messages import Message
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, Delta, TextDelta, ThinkingDelta

Item = dict[str, Any]


class OpenAIResponses:
    """POST /v1/responses and /v1/responses/input_tokens."""

    name = "openai_responses"
    paths: tuple[str, ...] = ("/v1/responses", "/responses")
    counters: Mapping[str, Callable[[int], dict[str, Any]]] = {
        "/v1/responses/input_tokens": lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens}
    }

    def read(self, body: Mapping[str, Any], memory: Memory | None = None) -> Ask:
        return responses_read.read(body)

    def writer(self, ask: Ask, mint: Mint, model: str, created: int) -> ResponseWriter:
        return ResponseWriter(ask, mint, model, created)

    def problem(self, problem: Problem) -> dict[str, Any]:
        body = OpenAIChat().problem(problem)
        if problem.kind == "context_overflow":
            body["error"]["message"] = (
                "Your input exceeds the context window of this model. Please adjust your input and try again. "
                f"({problem.asked} tokens, the window has {problem.limit}.)"
            )
            body["error"]["param"] = "input"
        return body


class ResponseWriter:
    """One reply as response.created … response.completed events, or as one response.

    The reasoning item carries the thinking twice: to be shown, and sealed, so that it comes back from a harness that
    keeps only `encrypted_content`.
    """

    ping = b": waiting\n\n"

    def __init__(self, ask: Ask, mint: Mint, model: str, created: int) -> None:
        self._mint = mint
        self._sequence = 0
        self._done: list[Item] = []
        self._item: Item | None = None
        self._parts: list[str] = []
        self._head = {
            "id": mint.id("resp"),
            "object": "response",
            "created_at": created,
            "model": model,
            "background": False,
            "error": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "previous_response_id": ask.previous,
            "store": ask.remember,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
        }

    def opening(self, prompt_tokens: int) -> bytes:
        response = self._response("in_progress", [], None)
        begun = self._event("response.created", response=response)
        return (begun + self._event("response.in_progress", response=response)).encode()

    def deltas(self, deltas: Sequence[Delta]) -> bytes:
        return "".join(self._delta(delta) for delta in deltas).encode()

    def closing(self, finish: Finish, usage: Usage) -> bytes:
        last = self._close("completed" if finish == "stop" else "incomplete")
        kind, response = self._ended(self._done, finish, usage)
        return (last + self._event(kind, response=response)).encode()

    def failure(self, problem: Problem) -> bytes:
        response = self._response("failed", self._done, None)
        code = "server_error" if problem.status >= 500 else "invalid_prompt"
        return self._event("response.failed", response=response | {"error": _error(code, problem.message)}).encode()

    def whole(self, reply: Message, finish: Finish, usage: Usage) -> dict[str, Any]:
        items: list[Item] = []
        if reply.reasoning:
            items.append(self._reasoning(reply.reasoning))
        if reply.content:
            items.append(self._message(reply.content))
        for i, call in enumerate(reply.tool_calls):
            items.append(self._call(i, call.name, call.arguments))
        for item in items:
            item["status"] = "completed"
        if items and finish != "stop":
            items[-1]["status"] = "incomplete"
        return self._ended(items, finish, usage)[1]

    def _ended(self, items: list[Item], finish: Finish, usage: Usage) -> tuple[str, dict[str, Any]]:
        status = "completed" if finish == "stop" else "incomplete"
        return f"response.{status}", self._response(status, items, usage)

    def _response(self, status: str, items: list[Item], usage: Usage | None) -> dict[str, Any]:
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        said = None if usage is None else _usage(usage)
        return {**self._head, "status": status, "incomplete_details": why, "output": items, "usage": said}

    def _reasoning(self, text: str) -> Item:
        content = [{"type": "reasoning_text", "text": text}]
        sealed = seal(self._mint.mark, text)
        return {
            "id": self._mint.id("rs"), "type": "reasoning", "summary": [], "content": content,
            "encrypted_content": sealed,
        }  # fmt: skip

    def _message(self, text: str) -> Item:
        return {"id": self._mint.id("msg"), "type": "message", "role": "assistant", "content": [_output_text(text)]}

    def _call(self, index: int, name: str, arguments: str) -> Item:
        minted = self._mint.call_id(index, "fc")
        call_id = self._mint.call_id(index)
        return {"id": minted, "type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}

    def _delta(self, delta: Delta) -> str:
        if isinstance(delta, TextDelta):
            before = self._part(self._message(""), "content", {**_output_text("")})
            return before + self._piece("response.output_text.delta", delta.text, content_index=0, logprobs=[])
        if isinstance(delta, ThinkingDelta):
            item = self._reasoning("") | {"encrypted_content": None}
            before = self._part(item, "content", {"type": "reasoning_text", "text": ""})
            return before + self._piece("response.reasoning_text.delta", delta.text, content_index=0)
        if isinstance(delta, CallStart):
            return self._begin(self._call(delta.index, delta.name, ""))
        if isinstance(delta, CallArguments):
            return self._piece("response.function_call_arguments.delta", delta.text)
        assert isinstance(delta, CallEnd)
        return self._close("completed")

    def _part(self, item: Item, key: str, part: Item) -> str:
        """Begin an item that has one part, unless it is the open one."""
        if self._item is not None and self._item["type"] == item["type"]:
            return ""
        begun = self._begin({**item, key: []})
        return begun + self._in_item("response.content_part.added", content_index=0, part=part)

    def _begin(self, item: Item) -> str:
        before = self._close("completed")
        self._item, self._parts = {**item, "status": "in_progress"}, []
        return before + self._event("response.output_item.added", output_index=len(self._done), item=self._item)

    def _piece(self, kind: str, text: str, **more: Any) -> str:
        self._parts.append(text)
        return self._in_item(kind, delta=text, **more)

    def _close(self, status: str) -> str:
        """End the open item, if there is one: what it said, once more and whole."""
        if self._item is None:
            return ""
        text, kind = "".join(self._parts), self._item["type"]
        if kind == "function_call":
            item = self._item | {"arguments": text}
            end = self._in_item("response.function_call_arguments.done", name=item["name"], arguments=text)
        elif kind == "reasoning":
            item = self._reasoning(text)
            end = self._in_item("response.reasoning_text.done", content_index=0, text=text)
            end += self._in_item("response.content_part.done", content_index=0, part=item["content"][0])
        else:
            item = self._message(text)
            end = self._in_item("response.output_text.done", content_index=0, text=text, logprobs=[])
            end += self._in_item("response.content_part.done", content_index=0, part=item["content"][0])
        item["status"] = status
        end += self._event("response.output_item.done", output_index=len(self._done), item=item)
        self._done.append(item)
        self._item = None
        return end

    def _in_item(self, kind: str, **fields: Any) -> str:
        assert self._item is not None
        return self._event(kind, item_id=self._item["id"], output_index=len(self._done), **fields)

    def _event(self, kind: str, **fields: Any) -> str:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {json.dumps(data)}\n\n"


def _output_text(text: str) -> Item:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _error(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
