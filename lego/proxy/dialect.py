"""The wall between the wire formats and the rest: one module a dialect satisfies `Dialect`.

A dialect knows JSON shapes and wordings and nothing else: no sockets, no tokens, no session.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from lego.engine.base import Finish
from lego.trajectory.messages import Message, Tool
from lego.trajectory.parse import Delta

ProblemKind = Literal[
    "bad_request",
    "wrong_token",
    "not_found",
    "context_overflow",
    "too_large",
    "engine_fault",
    "proxy_fault",
    "cap",
    "client_gone",
]

STATUS: Mapping[ProblemKind, int] = {
    "bad_request": 400,
    "wrong_token": 401,
    "not_found": 404,
    "context_overflow": 400,
    "too_large": 413,
    "engine_fault": 500,
    "proxy_fault": 500,
    "cap": 400,
    "client_gone": 499,
}
"""HTTP status of each problem: 5xx is what harnesses try again, 4xx is final; nobody hears 499."""


class Problem(Exception):
    """A request that gets no reply; each dialect words it so that its harnesses do the right thing.

    `limit` and `asked` are tokens (context_overflow only).
    """

    def __init__(
        self, kind: ProblemKind, message: str, *, param: str | None = None, limit: int = 0, asked: int = 0
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.limit = limit
        self.asked = asked

    @property
    def status(self) -> int:
        return STATUS[self.kind]

    @property
    def reason(self) -> str:
        """The kind, and for our own faults what happened: what a record says."""
        return f"{self.kind}: {self.message}" if self.status >= 500 else self.kind


@dataclass(frozen=True)
class Ask:
    """A request, read. `wishes` are the sampling parameters that the harness asked for, as it wrote them."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    model: str
    stream: bool
    wishes: dict[str, Any]
    stream_usage: bool = False


@dataclass(frozen=True)
class Usage:
    """True token counts of one call."""

    prompt_tokens: int
    completion_tokens: int


@dataclass
class Mint:
    """What the harness must echo, made by us: ids that nobody can guess, so that a turn is known by them."""

    response_id: str = field(default_factory=lambda: secrets.token_hex(12))
    _calls: dict[int, str] = field(default_factory=dict)

    def call_id(self, index: int) -> str:
        """Id of the reply's tool call number `index`, the same each time it is asked for."""
        if index not in self._calls:
            self._calls[index] = f"call_{secrets.token_hex(12)}"
        return self._calls[index]


class ReplyWriter(Protocol):
    """One reply, put on the wire. Every method but `whole` returns bytes of a server-sent event stream."""

    def opening(self) -> bytes: ...

    def deltas(self, deltas: Sequence[Delta]) -> bytes: ...

    def closing(self, finish: Finish, usage: Usage) -> bytes: ...

    def failure(self, problem: Problem) -> bytes:
        """The stream has begun and cannot go on."""
        ...

    def whole(self, reply: Message, finish: Finish, usage: Usage) -> dict[str, Any]:
        """The body of a reply that is not streamed. `reply` carries its minted ids."""
        ...


class Dialect(Protocol):
    """One wire format.

    name: as harness specs and the calls table have it.  paths: where requests of this dialect are posted.
    """

    name: str
    paths: tuple[str, ...]

    def read(self, body: Mapping[str, Any]) -> Ask:
        """Raises Problem("bad_request") saying which field is wrong."""
        ...

    def writer(self, ask: Ask, mint: Mint, model: str, created: int) -> ReplyWriter: ...

    def problem(self, problem: Problem) -> dict[str, Any]:
        """The body of an error response."""
        ...
