"""From sampled ids to text, thinking and tool calls, as they stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lego.trajectory.arrays import Finish
from lego.trajectory.messages import Message


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class ThinkingDelta:
    text: str


@dataclass(frozen=True)
class CallStart:
    """A tool call begins; `index` counts the calls of the reply from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class CallArguments:
    """The next piece of a call's arguments: JSON text."""

    index: int
    text: str


@dataclass(frozen=True)
class CallEnd:
    index: int


Delta = TextDelta | ThinkingDelta | CallStart | CallArguments | CallEnd


@dataclass(frozen=True)
class Reply:
    """A whole reply. `message` is the sum of all deltas; its tool calls have empty ids (the proxy mints them).

    `malformed` says, one line each, what was wrong with calls that could not be read. `tail` are the deltas that
    were held back until the end: a streaming caller sends them last.
    """

    message: Message
    malformed: tuple[str, ...] = ()
    tail: tuple[Delta, ...] = ()


class StreamParser(Protocol):
    """Parses one reply. Never raises on what a policy may sample."""

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        """Take the next sampled ids; say what they add. A stop id ends the reply: what follows it is ignored."""
        ...

    def finish(self, finish: Finish) -> Reply:
        """The generation has ended; what was held back is in `Reply.tail`. To be called once."""
        ...
