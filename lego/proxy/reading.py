"""What the readers of the block- and item-wise dialects share."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from lego.proxy.dialect import Problem
from lego.trajectory.messages import Message, ToolCall

_KEPT = 4
"""Conversations remembered: the main thread and some sub-agents."""


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


def in_call_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Tool results in the order of their calls: they may come as they completed, and templates tell them apart by
    place. Everything else stays where it is."""
    ordered = list(messages)
    calls: tuple[ToolCall, ...] = ()
    results: list[int] = []
    for at, message in enumerate(messages):
        if message.role == "tool":
            results.append(at)
        elif message.role == "assistant":
            if len(results) > 1:
                _sort(ordered, results, calls)
            calls, results = message.tool_calls, []
    if len(results) > 1:
        _sort(ordered, results, calls)
    return tuple(ordered)


def _sort(messages: list[Message], places: Sequence[int], calls: Sequence[ToolCall]) -> None:
    order: Mapping[str | None, int] = {call.id: at for at, call in enumerate(calls)}
    found = sorted((messages[at] for at in places), key=lambda one: order.get(one.tool_call_id, len(order)))
    for at, message in zip(places, found, strict=True):
        messages[at] = message


class Memory:
    """What was read of the latest requests, so that a history that comes again is compared and not read again."""

    def __init__(self) -> None:
        self._kept: list[tuple[list[Any], list[Sequence[Message]]]] = []

    def read(self, entries: list[Any], one: Callable[[Any, int], Sequence[Message]]) -> Iterator[Message]:
        """The messages of all entries in order; `one` reads the entry at an index, and depends on nothing else."""
        at, best = 0, None
        for number, (before, _) in enumerate(self._kept):
            common = _common(before, entries)
            if common > at:
                at, best = common, number
        known, read = ([], []) if best is None else self._kept[best]
        # The entries that came first stay: their texts are those that the messages hold.
        known, read = known[:at] + entries[at:], read[:at] + [one(entries[i], i) for i in range(at, len(entries))]
        if best is not None and len(self._kept[best][0]) == at:
            del self._kept[best]
        self._kept = [*self._kept[-_KEPT + 1 :], (known, read)]
        return chain.from_iterable(read)


def _common(before: list[Any], entries: list[Any]) -> int:
    """How many first entries are equal."""
    n = min(len(before), len(entries))
    if before[:n] == entries[:n]:
        return n
    return next(at for at in range(n) if before[at] != entries[at])
