"""The wall between the wire formats and the rest: one module a dialect satisfies `Dialect`.

A dialect knows JSON shapes and wordings and nothing else: no sockets, no tokens, no session.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lego.engine.base import Finish
from lego.trajectory.messages import Message, Tool
from lego.trajectory.parse import Delta

if TYPE_CHECKING:
    from lego.proxy.reading import Memory

ProblemKind = Literal[
    "bad_request",
    "wrong_token",
    "not_found",
    "context_overflow",
    "too_large",
    "foreign",
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
    "foreign": 403,
    "engine_fault": 500,
    "proxy_fault": 500,
    "cap": 400,
    "client_gone": 499,
}
"""HTTP status of each problem: 5xx is what harnesses try again, 4xx is final; nobody hears 499."""


class Problem(Exception):
    """A request that gets no reply; each dialect words it so that its harnesses do the right thing.

    `param` and `code`: OpenAI's words for the field that is wrong and for what is. `limit` and `asked` are tokens
    (context_overflow only).
    """

    def __init__(
        self,
        kind: ProblemKind,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        limit: int = 0,
        asked: int = 0,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.param = param
        self.code = code
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
    """A request, read. `wishes` are the sampling parameters that the harness asked for, as it wrote them.

    previous: the id of the response whose conversation stands after the first `own` messages; None: all is here.
    remember: a later request may name this one's response as its `previous`; the first `own` messages are then not
    part of what it gets.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    model: str
    stream: bool
    wishes: dict[str, Any]
    stream_usage: bool = False
    own: int = 0
    previous: str | None = None
    remember: bool = False


@dataclass(frozen=True)
class Usage:
    """True token counts of one call."""

    prompt_tokens: int
    completion_tokens: int


@dataclass
class Mint:
    """What the harness must echo, made by us: ids that nobody can guess, so that a turn is known by them.

    Every id of a reply holds its `mark`, so that `mark_of` finds it again.
    """

    mark: str = field(default_factory=lambda: secrets.token_hex(12))

    def id(self, prefix: str) -> str:
        """An id of which a reply has one."""
        return f"{prefix}_{self.mark}"

    def call_id(self, index: int, prefix: str = "call") -> str:
        """Id of the reply's tool call number `index`."""
        return f"{prefix}_{self.mark}_{index}"


_MINTED = re.compile(r"[a-z]+_([0-9a-f]{24})(?:_\d+)?")


def mark_of(minted: Any) -> str | None:
    """The mark in an id that a Mint made; None for anything else."""
    match = _MINTED.fullmatch(minted) if isinstance(minted, str) else None
    return match[1] if match else None


class ReplyWriter(Protocol):
    """One reply, put on the wire. Every method but `whole` returns bytes of a server-sent event stream.

    ping: what is sent while nothing is sampled.
    """

    ping: bytes

    def opening(self, prompt_tokens: int) -> bytes: ...

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
    counters: paths that only count a request's tokens, and the body that says the number.
    """

    name: str
    paths: tuple[str, ...]
    counters: Mapping[str, Callable[[int], dict[str, Any]]]

    def read(self, body: Mapping[str, Any], memory: Memory | None = None) -> Ask:
        """`memory`: of the session's earlier requests. Raises Problem("bad_request") saying which field is wrong."""
        ...

    def writer(self, ask: Ask, mint: Mint, model: str, created: int) -> ReplyWriter: ...

    def problem(self, problem: Problem) -> dict[str, Any]:
        """The body of an error response."""
        ...
