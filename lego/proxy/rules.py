"""What a harness spec declares about its calls: which are sub-agents, which auxiliary, which lines are volatile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lego.errors import ConfigError
from lego.trajectory.messages import Message

CallKind = Literal["main", "subagent", "auxiliary"]

SUBAGENT_KEYS = ("header",)
AUXILIARY_KEYS = ("output_format", "system", "last_user", "tools")
VOLATILE_KEYS = ("system_line",)


@dataclass(frozen=True)
class CallRules:
    """Rules of one harness, as its spec's `calls` section has them.

    subagent: `header` names the header that only a sub-agent's calls carry.
    auxiliary: a call is auxiliary when every key of one entry matches: `output_format` is the requested response
    format's type, `system` and `last_user` are regular expressions searched for in the first system and the last
    user message, `tools: none` is a call without tools.
    volatile: `system_line` is a regular expression; system lines it matches are taken out before rendering.
    Raises ConfigError for a key that is not one of these or an expression that does not compile.
    """

    subagent: Mapping[str, str] = field(default_factory=dict)
    auxiliary: tuple[Mapping[str, str], ...] = ()
    volatile: tuple[Mapping[str, str], ...] = ()
    _lines: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False, default=())

    def __post_init__(self) -> None:
        _check("subagent", (self.subagent,), SUBAGENT_KEYS)
        _check("auxiliary", self.auxiliary, AUXILIARY_KEYS)
        _check("volatile", self.volatile, VOLATILE_KEYS)
        for matcher in self.auxiliary:
            for key in ("system", "last_user"):
                if key in matcher:
                    _compiled("auxiliary", matcher[key])
        lines = tuple(_compiled("volatile", rule["system_line"]) for rule in self.volatile if "system_line" in rule)
        object.__setattr__(self, "_lines", lines)

    def kind(
        self, headers: Mapping[str, str], messages: Sequence[Message], tools: int, wishes: Mapping[str, Any]
    ) -> CallKind:
        """What kind of call this is; `tools` is how many are on offer, `headers` is case-insensitive."""
        if self.subagent and self.subagent["header"] in headers:
            return "subagent"
        if any(_matches(matcher, messages, tools, wishes) for matcher in self.auxiliary):
            return "auxiliary"
        return "main"

    def settle(self, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], int]:
        """The messages without their volatile lines, and how many lines were taken out."""
        if not self._lines:
            return messages, 0
        removed = 0
        settled = []
        for message in messages:
            if message.role == "system":
                lines = message.content.split("\n")
                kept = [line for line in lines if not any(pattern.search(line) for pattern in self._lines)]
                if len(kept) < len(lines):
                    removed += len(lines) - len(kept)
                    message = replace(message, content="\n".join(kept))
            settled.append(message)
        return tuple(settled), removed


def _check(where: str, entries: Sequence[Mapping[str, str]], known: Sequence[str]) -> None:
    for entry in entries:
        for key in entry:
            if key not in known:
                raise ConfigError(f"harness rule calls.{where}: no such key {key!r}", hint=f"known: {', '.join(known)}")
        if entry.get("tools", "none") != "none":
            raise ConfigError(f"harness rule calls.{where}.tools: {entry['tools']!r}", hint="the only value is none")


def _compiled(where: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"harness rule calls.{where}: {pattern!r} is no regular expression: {error}") from error


def _output_formats(wishes: Mapping[str, Any]) -> list[Any]:
    """The type of the requested output format, wherever a dialect puts it."""
    places = [wishes.get("response_format")]
    for holder in (wishes.get("output_config"), wishes.get("text")):
        places.append(holder.get("format") if isinstance(holder, Mapping) else None)
    return [place.get("type") for place in places if isinstance(place, Mapping)]


def _matches(matcher: Mapping[str, str], messages: Sequence[Message], tools: int, wishes: Mapping[str, Any]) -> bool:
    if not matcher:
        return False
    output_format = matcher.get("output_format")
    if output_format is not None and output_format not in _output_formats(wishes):
        return False
    if matcher.get("tools") == "none" and tools:
        return False
    system = matcher.get("system")
    if system is not None and not re.search(system, next((m.content for m in messages if m.role == "system"), "")):
        return False
    last_user = matcher.get("last_user")
    return last_user is None or bool(
        re.search(last_user, next((m.content for m in reversed(messages) if m.role == "user"), ""))
    )
