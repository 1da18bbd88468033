"""One trial's conversation with its model: token, caps, call tree, and a record of every request."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from lego.clock import TrialClock
from lego.engine.base import Engine, Sampling
from lego.errors import EngineError, LegoError
from lego.proxy.dialect import Ask, Problem, mark_of
from lego.proxy.foreign import client_name
from lego.proxy.reading import Memory, in_call_order
from lego.proxy.records import FinishedCall, Summary, tools_json
from lego.proxy.rules import CallRules
from lego.trajectory.messages import Message, Tool
from lego.trajectory.prompt import HistoryPolicy
from lego.trajectory.render import Rendering
from lego.trajectory.tree import CallTree, Continue, Place

_TOOL_LISTS = 4
"""Remembered: those of the main thread and of some sub-agents."""
_SHOWN = 300
"""Characters kept of the reason that a request was refused with."""
_REJECTED_ROWS = 100
"""Rejected requests recorded one by one; an agent that hammers the socket shall not fill the database."""


@dataclass(frozen=True)
class Caps:
    """Limits the proxy holds. Tokens but for `max_turns`, which counts calls; 0 is no cap (`context` must be set)."""

    max_turns: int
    max_output_tokens: int
    context: int
    max_total_tokens: int = 0


@dataclass(frozen=True)
class SessionSpec:
    """All that a session needs to know of its trial.

    socket_dir: an existing folder for this session alone; keep it short, a socket path has 107 bytes.
    programs: where the programs that may call are, as the sandbox names it; "" is anywhere.
    history: "raw" continues calls from their raw ids, "template" renders each request afresh.
    seed: makes each call's sampling seed, in the order calls begin; None leaves it to the engine.
    on_call is called once for each request, when it has ended; on_fate(seq, fate) when a recorded call's fate
    changes later (superseded). Both run in the event loop; what they raise closes the session to the harness and
    is raised again when the session closes.
    """

    id: str
    socket_dir: Path
    token: str
    caps: Caps
    temperature: float = 1.0
    model_name: str = "policy"
    programs: str = ""
    policy_version: int = 0
    history: HistoryPolicy = "raw"
    seed: int | None = None
    rules: CallRules = field(default_factory=CallRules)
    on_call: Callable[[FinishedCall], None] | None = None
    on_fate: Callable[[int, str], None] | None = None
    clock: TrialClock = field(default_factory=lambda: TrialClock(math.inf))


@dataclass(frozen=True)
class Said:
    """A conversation as what it adds to one before it. The first `own` messages of its request are not in it."""

    before: Said | None
    own: int
    added: tuple[Message, ...]

    def messages(self) -> tuple[Message, ...]:
        parts: list[tuple[Message, ...]] = []
        said: Said | None = self
        while said is not None:
            parts.append(said.added)
            said = said.before
        return tuple(chain.from_iterable(reversed(parts)))


class Session:
    """A session that is open. `tree` holds its calls; `capped` is set when a cap was hit, `cap_reason` says which."""

    def __init__(self, spec: SessionSpec, engine: Engine, rendering: Rendering, socket_path: Path) -> None:
        self.spec = spec
        self.engine = engine
        self.rendering = rendering
        self.socket_path = socket_path
        self.tree = CallTree()
        self.memory = Memory()
        self.clock = spec.clock
        self.capped = asyncio.Event()
        self.cap_reason = ""
        self.closed = False
        self.error: Exception | None = None
        self._tools: list[tuple[tuple[Tool, ...], tuple[str, str]]] = []
        self._turns = 0
        self._sampled = 0
        self._sum = Summary()
        self._recorded_rejections = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._transports: set[asyncio.BaseTransport] = set()
        self._closers: list[Callable[[], Awaitable[None]]] = []
        self._client: str | None = None
        self._remembered: dict[str, Said] = {}
        self._said: dict[int, Said] = {}

    @property
    def token(self) -> str:
        return self.spec.token

    def on_close(self, closer: Callable[[], Awaitable[None]]) -> None:
        self._closers.append(closer)

    def attach(self, transport: asyncio.BaseTransport | None) -> None:
        """The current task serves a request of this session that came through `transport`."""
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        if transport is not None:
            self._transports.add(transport)
            self._transports = {t for t in self._transports if not t.is_closing()}

    def detach(self) -> None:
        self._tasks.discard(asyncio.current_task())  # type: ignore[arg-type]

    async def close(self) -> None:
        """No call after this. Calls in flight are cancelled and recorded as abandoned. Idempotent.

        Raises what a callback of the spec raised, once.
        """
        if not self.closed:
            self.closed = True
            for closer in self._closers:
                await closer()
            tasks = [task for task in self._tasks if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for transport in self._transports:
                if isinstance(transport, asyncio.Transport):
                    transport.abort()
            self._transports.clear()
            self.engine.end_session(self.spec.id)
        error, self.error = self.error, None
        if error is not None:
            raise error

    def summary(self) -> Summary:
        """The session in numbers, so far."""
        self._sum.engine_seconds = self.clock.waited
        self._sum.cap_reason = self.cap_reason
        self._sum.sampled_tokens = self._sampled
        return self._sum

    def admit(self, prompt_tokens: int) -> Sampling:
        """Count a call in, and say how it is sampled. Raises Problem: over a cap, or no room in the context."""
        caps = self.spec.caps
        if self.error is not None:
            raise Problem("proxy_fault", "this session can no longer be recorded")
        self.check_caps()
        room = caps.context - prompt_tokens
        if room < 1:
            raise Problem("context_overflow", "context overflow", limit=caps.context, asked=prompt_tokens)
        limit = min(room, caps.max_output_tokens or room)
        if caps.max_total_tokens:
            limit = min(limit, caps.max_total_tokens - self._sampled)
        self._turns += 1
        engine = self.engine
        if engine.sampler == "policy" and engine.policy_version != self.spec.policy_version:
            raise EngineError(f"it holds policy {engine.policy_version}, the trial wants {self.spec.policy_version}")
        return Sampling(
            max_tokens=limit,
            temperature=self.spec.temperature,
            stop_ids=tuple(self.rendering.stop_ids),
            seed=self._call_seed(),
        )

    def conversation(self, ask: Ask) -> tuple[Message, ...]:
        """All messages of a request, those before its previous response included; tool results in call order.

        Raises Problem: the previous response is not one of ours.
        """
        if ask.previous is None:
            return in_call_order(ask.messages)
        before = self._remembered.get(mark_of(ask.previous) or "")
        if before is None:
            message = f"Previous response with id '{ask.previous}' not found."
            code = "previous_response_not_found"
            raise Problem("bad_request", message, param="previous_response_id", code=code)
        return in_call_order((*ask.messages[: ask.own], *before.messages(), *ask.messages[ask.own :]))

    def foreign_client(self, user_agent: str) -> str:
        """Evidence that a call is not the harness's: its client has another name than the first call's. Else ""."""
        name = client_name(user_agent)
        if self._client is None:
            self._client = name
        if name == self._client:
            return ""
        self._sum.foreign += 1
        return f"by {name or 'a client without a name'}, where the harness calls as {self._client or 'one without'}"

    def remember(self, ask: Ask, place: Place, seq: int, reply: Message) -> None:
        """Keep what a request that names this response as its previous one goes on from. Call `seq` gave it, and
        `reply` has its mark."""
        before, new = None, ask.messages[ask.own :]
        if isinstance(place, Continue):
            before = self._said.get(place.call.seq)
            if before is not None and before.own == ask.own:
                new = place.tail
            else:
                before = None
        said = self._said[seq] = Said(before, ask.own, (*new, reply))
        if reply.mark:
            self._remembered[reply.mark] = said

    def check_caps(self) -> None:
        """Raises Problem("cap") when the trial has used up its turns or tokens, and sets `capped`."""
        caps = self.spec.caps
        if caps.max_turns and self._turns >= caps.max_turns:
            self._cap("turns", f"the trial's limit of {caps.max_turns} model calls is reached")
        if caps.max_total_tokens and self._sampled >= caps.max_total_tokens:
            self._cap("tokens", f"the trial's limit of {caps.max_total_tokens} sampled tokens is reached")

    def tools_json(self, tools: tuple[Tool, ...]) -> tuple[str, str]:
        """(digest, JSON text) of a request's tools; written once for those that come again and again."""
        known = next((written for kept, written in reversed(self._tools) if kept == tools), None)
        if known is None:
            known = tools_json(tools)
            self._tools = [*self._tools[-_TOOL_LISTS + 1 :], (tools, known)]
        return known

    def sampled(self, tokens: int) -> bool:
        """Count sampled tokens; False when the session's total is used up and sampling must stop."""
        self._sampled += tokens
        total = self.spec.caps.max_total_tokens
        return not total or self._sampled < total

    def report(self, call: FinishedCall, *, malformed: int = 0) -> None:
        """A request has ended: count it, hand it on."""
        self._sum.overflowed = call.kind == "rejected" and call.reason == "context_overflow"
        if call.kind == "rejected":
            self._sum.foreign += call.reason == "foreign"
            self._sum.rejected[call.reason] = self._sum.rejected.get(call.reason, 0) + 1
            self._recorded_rejections += 1
            if self._recorded_rejections > _REJECTED_ROWS:
                return
        else:
            self._sum.calls += 1
            self._sum.heard += call.fate != "abandoned" or bool((call.reply or {}).get("tool_calls"))
            self._sum.prompt_tokens += call.prompt_tokens
            self._sum.malformed += malformed
            self._sum.abandoned += call.fate == "abandoned"
        self._tell(lambda: self.spec.on_call and self.spec.on_call(call))

    def fate(self, seq: int, fate: str) -> None:
        """A call that may have been recorded already has a new fate."""
        self._tell(lambda: self.spec.on_fate and self.spec.on_fate(seq, fate))

    def fault(self, error: BaseException) -> None:
        """A reply was lost to our own engine or proxy."""
        self._sum.faults += 1
        self._sum.fault = str(error) or type(error).__name__
        self._sum.fault_of = error.fault if isinstance(error, LegoError) else "infra"

    def reject(
        self, problem: Problem, dialect: str, *, seq: int | None = None, started_at: float | None = None, **seen: Any
    ) -> None:
        """Record a request that gets no reply. `seen` are fields of FinishedCall, as far as they are known."""
        now = time.time()
        reason = f"cap: {self.cap_reason}" if problem.kind == "cap" else problem.reason
        fields: dict[str, Any] = {
            "prompt_tokens": problem.asked,
            "messages": {"kept": 0, "new": []},
            "tools_digest": "",
            "tools": "",
            "wishes": {},
            "drift": {"problem": problem.message[:_SHOWN]},
            **seen,
        }
        self.report(
            FinishedCall(
                seq=self.tree.reserve() if seq is None else seq,
                parent_seq=None,
                shared=0,
                kind="rejected",
                sampler=self.engine.sampler,
                policy_version=self.spec.policy_version,
                dialect=dialect,
                added_prompt_ids=np.empty(0, np.int32),
                completion_ids=np.empty(0, np.int32),
                logprobs=None,
                finish="",
                fate="abandoned",
                status=problem.status,
                reason=reason,
                reply=None,
                started_at=now if started_at is None else started_at,
                first_token_at=None,
                ended_at=now,
                **fields,
            )
        )

    def _cap(self, reason: str, message: str) -> None:
        if not self.capped.is_set():
            self.cap_reason = reason
            self.capped.set()
        raise Problem("cap", message)

    def _call_seed(self) -> int | None:
        if self.spec.seed is None:
            return None
        digest = hashlib.blake2b(f"{self.spec.seed}/{self._turns}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1

    def _tell(self, callback: Callable[[], object]) -> None:
        try:
            callback()
        except Exception as error:
            if self.error is None:
                self.error = error
                self.cap_reason = self.cap_reason or "record"
                self.capped.set()
