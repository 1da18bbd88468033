"""What the readers of the block- and item-wise dialects share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lego.proxy.dialect import Problem
from lego.trajectory.messages import Message


def bad(where: str, message: str) -> Problem:
    return Problem("bad_request", f"{where}: {message}", param=where)


def array(body: Mapping[str, Any], key: str) -> list[Any]:
    """The value of an optional array. Raises Problem for anything else."""
    value = body.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise bad(key, "expected an array")
    return value


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise bad(where, "expected an object")
    return value


def text_of(content: Any, where: str, kinds: Mapping[str, str]) -> str:
    """A string, or the text of a list of parts joined by newlines. `kinds`: part type -> the key its text is under.

    Raises Problem for a part of any other kind: an image that is dropped in silence would be a lie.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad(where, "expected a string or an array")
    return "\n".join(part_text(part, f"{where}.{i}", kinds) for i, part in enumerate(content))


def part_text(part: Any, where: str, kinds: Mapping[str, str]) -> str:
    kind = mapping(part, where).get("type")
    key = kinds.get(kind) if isinstance(kind, str) else None
    text = None if key is None else part.get(key)
    if not isinstance(text, str):
        raise bad(where, f"content of type {kind!r} is not supported, this model takes text only")
    return text


def arguments_text(value: Any) -> str:
    """Arguments as JSON text, whatever the harness made of them."""
    return value if isinstance(value, str) else json.dumps({} if value is None else value, ensure_ascii=False)


def in_call_order(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Tool results in the order of their calls: they may come as they completed, and templates tell them apart by
    place. Everything else stays where it is."""
    ordered: list[Message] = []
    run: list[Message] = []
    order: Mapping[str | None, int] = {}
    for message in messages:
        if message.role == "assistant":
            ordered += [*_sorted(run, order), message]
            run, order = [], {call.id: at for at, call in enumerate(message.tool_calls)}
        else:
            run.append(message)
    return (*ordered, *_sorted(run, order))


def _sorted(run: Sequence[Message], order: Mapping[str | None, int]) -> list[Message]:
    results = iter(sorted((m for m in run if m.role == "tool"), key=lambda m: order.get(m.tool_call_id, len(order))))
    return [next(results) if message.role == "tool" else message for message in run]
