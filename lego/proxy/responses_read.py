"""OpenAI Responses: requests read into the neutral conversation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lego.proxy.dialect import Ask, mark_of
from lego.proxy.reading import arguments_text, array, bad, mapping, part_text, text_of
from lego.proxy.seal import unseal
from lego.trajectory.messages import Message, Role, Tool, ToolCall

_NOT_WISHES = frozenset(
    {
        "input", "instructions", "tools", "model", "stream", "stream_options", "store", "include", "metadata", "user",
        "previous_response_id", "prompt_cache_key", "safety_identifier", "client_metadata",
    }
)  # fmt: skip
_ELSEWHERE = ("conversation", "prompt")
_ROLES: Mapping[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_TEXT = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_THINKING = {"reasoning_text": "text", "summary_text": "text", "text": "text"}


def read(body: Mapping[str, Any]) -> Ask:
    """Raises Problem("bad_request") saying which part of the request is wrong."""
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else array(body, "input")
    previous = body.get("previous_response_id")
    if not items and not previous:
        raise bad("input", "expected a string or a non-empty array")
    for key in _ELSEWHERE:
        if body.get(key):
            raise bad(key, "it names what this server does not hold, send the input itself")
    instructions = body.get("instructions")
    own = (Message("system", text_of(instructions, "instructions", _TEXT)),) if instructions else ()
    tools, left_out = _tools(body)
    wishes = {key: value for key, value in body.items() if key not in _NOT_WISHES and value is not None}
    reader = _Items()
    for i, item in enumerate(items):
        reader.take(mapping(item, f"input[{i}]"), f"input[{i}]")
    return Ask(
        messages=(*own, *reader.messages()),
        tools=tools,
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        wishes=wishes | ({"tools": left_out} if left_out else {}),
        own=len(own),
        previous=str(previous) if previous else None,
        remember=body.get("store") is not False,
    )


def _tools(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], list[str]]:
    """The functions on offer, and the types of tools that are none: hosted by OpenAI, or called in a grammar."""
    tools: list[Tool] = []
    left_out: list[str] = []
    for i, entry in enumerate(array(body, "tools")):
        tool = mapping(entry, f"tools[{i}]")
        if tool.get("type") != "function":
            left_out.append(str(tool.get("type")))
            continue
        if not isinstance(tool.get("name"), str):
            raise bad(f"tools[{i}].name", "a function needs a name")
        parameters = tool.get("parameters") or {}
        if not isinstance(parameters, dict):
            raise bad(f"tools[{i}].parameters", "expected an object")
        tools.append(Tool(tool["name"], str(tool.get("description") or ""), parameters))
    return tuple(tools), left_out


@dataclass
class _Draft:
    """An assistant message being put together from its items."""

    at: int
    text: str | None = None
    thinking: str | None = None
    calls: list[ToolCall] = field(default_factory=list)
    mark: str | None = None

    def belongs(self, mark: str | None, *, first: bool) -> bool:
        """Whether an item goes on with this message. `first`: of its kind there is one, before all calls."""
        if mark and self.mark:
            return mark == self.mark
        return not (first and (self.calls or self.text is not None))

    def message(self) -> Message:
        return Message("assistant", self.text or "", self.thinking or None, tuple(self.calls), mark=self.mark)


class _Items:
    """Items as messages. The items of one reply are one message, also where results stand between its calls."""

    def __init__(self) -> None:
        self._messages: list[Message | _Draft] = []
        self._draft: _Draft | None = None
        self._results = 0

    def messages(self) -> list[Message]:
        return [entry.message() if isinstance(entry, _Draft) else entry for entry in self._messages]

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type", "message")
        if kind == "reasoning":
            self._reasoning(item, where)
        elif kind == "function_call":
            self._call(item, where)
        elif kind == "function_call_output":
            call_id = item.get("call_id")
            output = text_of(item.get("output"), f"{where}.output", _TEXT)
            self._results += 1
            self._messages.append(Message("tool", output, tool_call_id=str(call_id) if call_id else None))
        elif kind == "message" and item.get("role") == "assistant":
            draft = self._reply(mark_of(item.get("id")), first=True)
            draft.text = text_of(item.get("content"), f"{where}.content", _TEXT)
        elif kind == "message":
            role = _ROLES.get(str(item.get("role")))
            if role is None:
                raise bad(f"{where}.role", f"{item.get('role')!r} is not a role")
            self._draft = None
            self._messages.append(Message(role, text_of(item.get("content"), f"{where}.content", _TEXT)))
        else:
            raise bad(f"{where}.type", f"items of type {kind!r} are not supported, send messages and function calls")

    def _reasoning(self, item: Mapping[str, Any], where: str) -> None:
        sealed = item.get("encrypted_content")
        mark, thinking = (unseal(sealed) if isinstance(sealed, str) else None) or (mark_of(item.get("id")), "")
        parts = [*array(item, "content"), *array(item, "summary")] if not thinking else []
        shown = [part_text(part, where, _THINKING) for part in parts]
        self._draft = None
        self._reply(mark, first=True).thinking = thinking or "\n".join(shown)

    def _call(self, item: Mapping[str, Any], where: str) -> None:
        if not isinstance(item.get("name"), str):
            raise bad(f"{where}.name", "a function_call needs a name")
        call_id = str(item.get("call_id") or "")
        call = ToolCall(call_id, item["name"], arguments_text(item.get("arguments")))
        self._reply(mark_of(call_id), first=False).calls.append(call)

    def _reply(self, mark: str | None, *, first: bool) -> _Draft:
        """The message that an assistant's item belongs to: the last one, or a new one."""
        draft = self._draft
        between = draft is not None and self._results > draft.at
        if draft is None or not draft.belongs(mark, first=first) or (between and not (mark and draft.mark == mark)):
            draft = self._draft = _Draft(self._results)
            self._messages.append(draft)
        draft.mark = draft.mark or mark
        return draft
