"""Anthropic Messages: requests read into the neutral conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lego.proxy.dialect import Ask, mark_of
from lego.proxy.reading import Memory, arguments_text, array, bad, mapping, part_text, text_of
from lego.trajectory.messages import Message, Tool, ToolCall

UNPARSED = "__unparsedToolInput"
"""The key under which input that is no JSON object travels: Claude Code's own word for it."""

_NOT_WISHES = frozenset({"messages", "system", "tools", "model", "stream", "metadata"})
_TEXT = {"text": "text"}


def read(body: Mapping[str, Any], memory: Memory) -> Ask:
    """Raises Problem("bad_request") saying which part of the request is wrong."""
    turns = array(body, "messages")
    if not turns:
        raise bad("messages", "at least one message is required")
    messages: list[Message] = []
    if body.get("system"):
        messages.append(Message("system", text_of(body["system"], "system", _TEXT)))
    messages += memory.read(turns, _turn)
    tools, left_out = _tools(body)
    wishes = {key: value for key, value in body.items() if key not in _NOT_WISHES and value is not None}
    return Ask(
        messages=tuple(messages),
        tools=tools,
        model=str(body.get("model") or ""),
        stream=bool(body.get("stream")),
        wishes=wishes | ({"tools": left_out} if left_out else {}),
    )


def _tools(body: Mapping[str, Any]) -> tuple[tuple[Tool, ...], list[str]]:
    """The tools that can be offered, and the types of those that Anthropic itself would run or has taught."""
    tools: list[Tool] = []
    left_out: list[str] = []
    for i, entry in enumerate(array(body, "tools")):
        where = f"tools.{i}"
        tool = mapping(entry, where)
        if not isinstance(tool.get("name"), str):
            raise bad(f"{where}.name", "a tool needs a name")
        if tool.get("type") not in (None, "custom"):
            left_out.append(str(tool["type"]))
            continue
        schema = tool.get("input_schema")
        if not isinstance(schema, dict):
            raise bad(f"{where}.input_schema", "expected an object")
        tools.append(Tool(tool["name"], str(tool.get("description") or ""), schema))
    return tuple(tools), left_out


def _turn(entry: Any, index: int) -> list[Message]:
    turn = mapping(entry, f"messages.{index}")
    role, content = turn.get("role"), turn.get("content")
    where = f"messages.{index}.content"
    if role == "system":
        return [Message("system", text_of(content, where, _TEXT))]
    if role not in ("user", "assistant"):
        raise bad(f"messages.{index}.role", f"{role!r} is not one of user, assistant, system")
    if isinstance(content, str):
        return [Message("assistant" if role == "assistant" else "user", content)]
    if not isinstance(content, list):
        raise bad(where, "expected a string or an array")
    blocks = [(mapping(block, f"{where}.{i}"), f"{where}.{i}") for i, block in enumerate(content)]
    return [_assistant(blocks)] if role == "assistant" else _user(blocks)


def _user(blocks: list[tuple[Mapping[str, Any], str]]) -> list[Message]:
    """Texts next to each other are one message, each tool result is one of its own."""
    messages: list[Message] = []
    texts: list[str] = []
    for block, where in blocks:
        if block.get("type") != "tool_result":
            texts.append(_document(block) or part_text(block, where, _TEXT))
            continue
        if texts:
            messages.append(Message("user", "\n".join(texts)))
            texts = []
        result = text_of(block.get("content"), f"{where}.content", _TEXT)
        call_id = block.get("tool_use_id")
        messages.append(Message("tool", result, tool_call_id=str(call_id) if call_id else None))
    if texts or not messages:
        messages.append(Message("user", "\n".join(texts)))
    return messages


def _document(block: Mapping[str, Any]) -> str:
    """The text of a plain-text document; empty for everything else."""
    source = block.get("source") if block.get("type") == "document" else None
    plain = isinstance(source, Mapping) and source.get("type") == "text" and isinstance(source.get("data"), str)
    return source["data"] if plain and isinstance(source, Mapping) else ""


def _assistant(blocks: list[tuple[Mapping[str, Any], str]]) -> Message:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    mark: str | None = None
    for block, where in blocks:
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(part_text(block, where, {"thinking": "thinking"}))
            mark = mark or mark_of(block.get("signature"))
        elif kind == "redacted_thinking":
            continue
        elif kind == "tool_use":
            calls.append(_tool_use(block, where))
        else:
            texts.append(part_text(block, where, _TEXT))
    return Message("assistant", "\n".join(texts), "\n".join(thoughts) or None, tuple(calls), mark=mark)


def _tool_use(block: Mapping[str, Any], where: str) -> ToolCall:
    if not isinstance(block.get("name"), str):
        raise bad(f"{where}.name", "a tool_use needs the name of its tool")
    given = block.get("input")
    if isinstance(given, Mapping) and set(given) == {UNPARSED}:
        given = given[UNPARSED]
    return ToolCall(str(block.get("id") or ""), block["name"], arguments_text(given))
