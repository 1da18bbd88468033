"""Messages and tools as the `renderers` package and chat templates take them: dictionaries in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lego.trajectory.messages import Message, Tool

Turn = dict[str, Any]


def turn_of(message: Message) -> Turn:
    """A message as a turn. Arguments that are a JSON object go in as one, as a stock server does."""
    turn: Turn = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": arguments_of(c.arguments)}}
            for c in message.tool_calls
        ]
    return turn


def arguments_of(text: str) -> Any:
    """A call's arguments as an object, or their text where they are none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def tool_dicts(tools: Sequence[Tool]) -> list[Turn] | None:
    """Tools in OpenAI's form; None for none."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ] or None


def comparable(message: Message) -> tuple[Any, ...]:
    """What two replies that say the same have in common."""
    calls = [(call.name, arguments_of(call.arguments)) for call in message.tool_calls]
    return message.content.strip(), (message.reasoning or "").strip(), calls


def with_tool_names(messages: Sequence[Message]) -> list[Message]:
    """The messages with each tool result named after the call that it answers, where that is among them."""
    names = {call.id: call.name for message in messages for call in message.tool_calls if call.id}
    named: list[Message] = []
    for message in messages:
        unnamed = message.role == "tool" and message.name is None
        name = names.get(message.tool_call_id or "") if unnamed else None
        named.append(message if name is None else replace(message, name=name))
    return named
