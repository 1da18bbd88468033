"""What a harness changed, where a request does not go on from what was said before: in words, for the records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lego.trajectory.history import normal_text, reply_ids
from lego.trajectory.messages import Message
from lego.trajectory.tree import Continue, Place

_SHOWN = 80
"""Characters shown of either side."""
_BEFORE = 16
"""Of them, before the first difference."""


def difference(place: Place, messages: Sequence[Message]) -> dict[str, Any]:
    """Where and how `messages` part from the nearest conversation that is known.

    `at`: index of the first message that differs. `role`: its role. `changed`: what of it, in words. `was`, `now`: both
    texts from just before the first difference. Empty where nothing differs, or nothing was known.
    """
    if isinstance(place, Continue):
        # Where a history was shortened, or a reply was cut, others stand after the one that it goes on from.
        at = len(messages) - len(place.tail)
        replies = [number for number, message in enumerate(place.tail, at) if message.role == "assistant"]
        return (
            {"at": replies[0], "role": "assistant", "changed": "a reply that did not follow there"} if replies else {}
        )
    at = getattr(place, "at", 0)
    if getattr(place, "other_tools", False):
        return {"at": 0, "role": messages[0].role, "changed": "the list of tools"}
    if at >= len(messages):
        return {"at": at, "changed": "asked again"}
    message = messages[at]
    if not place.expected:
        return {}
    expected = next((one for one in reversed(place.expected) if one.role == message.role), place.expected[-1])
    return {"at": at, "role": message.role, **_changed(expected, message)}


def _changed(expected: Message, message: Message) -> dict[str, str]:
    if expected.role != message.role:
        what = "our reply left out" if expected.role == "assistant" else f"instead of a {expected.role} message"
        return {"changed": what, **_texts(expected.content, message.content)}
    if message.role == "assistant" and reply_ids(expected) != reply_ids(message):
        kept = len(reply_ids(expected) & reply_ids(message))
        return {
            "changed": f"the reply's calls: {kept} of {len(reply_ids(expected))} kept, {len(message.tool_calls)} now"
        }
    if normal_text(expected.content) != normal_text(message.content) or message.role != "assistant":
        if expected.content != message.content:
            return {"changed": "the text", **_texts(expected.content, message.content)}
        if expected.tool_call_id != message.tool_call_id:
            return {"changed": "which call it answers"}
        return {"changed": "the name or calls it carries"}
    return {"changed": "another reply with the same text"}


def _texts(was: str, now: str) -> dict[str, str]:
    """Both texts around the first difference."""
    pairs = enumerate(zip(was, now, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(was), len(now)))
    begin = max(0, first - _BEFORE)
    return {"was": was[begin : begin + _SHOWN], "now": now[begin : begin + _SHOWN]}
