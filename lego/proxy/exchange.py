"""One request from its JSON to its row: placed in the tree, sampled, told to the harness as it comes, recorded."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from lego.engine.base import Finish, GenerationRequest, Sampled, Sampling
from lego.errors import EngineError, LegoError, RenderError
from lego.proxy.dialect import Ask, Dialect, Mint, Problem, ReplyWriter, Usage
from lego.proxy.records import FinishedCall, message_json
from lego.proxy.rules import CallKind
from lego.proxy.session import Session
from lego.proxy.wire import Wire
from lego.trajectory.arrays import Fate
from lego.trajectory.drift import difference
from lego.trajectory.parse import Reply, StreamParser
from lego.trajectory.prompt import Prompt, compose, preview
from lego.trajectory.tree import Call, CallTree, Continue, Fork

log = logging.getLogger(__name__)

_NO_CHANGE: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "tool_choice": ("auto", {"type": "auto"}),
    "parallel_tool_calls": (True,),
    "n": (1,),
    "logprobs": (False,),
    "stop": ([],),
    "stop_sequences": ([],),
    "response_format": ({"type": "text"},),
    "text": ({"format": {"type": "text"}},),
    "truncation": ("disabled",),
}
"""Values a harness may ask for that are the run's own: not worth a record."""


async def serve(
    session: Session, dialect: Dialect, body: Mapping[str, Any], headers: Mapping[str, str], wire: Wire, *, park: float
) -> None:
    """Answer one request and report it to the session. Only a cancelled task or a lost client leaves by raising."""
    exchange = Exchange(session, dialect, wire)
    try:
        exchange.prepare(body, headers)
    except Problem as problem:
        try:
            if problem.kind == "cap":
                # The runner stops the container now; an answer would only be tried again or acted upon.
                await asyncio.sleep(park)
        finally:
            exchange.reject(problem)
        await wire.whole(problem.status, dialect.problem(problem))
        return
    await exchange.run()


async def count(
    session: Session, dialect: Dialect, body: Mapping[str, Any], wire: Wire, said: Callable[[int], dict[str, Any]]
) -> None:
    """Answer how many tokens the request's prompt would have. No call, no row, and nothing in the tree changes."""
    ask = dialect.read(body, session.memory)
    messages, _ = session.spec.rules.settle(session.conversation(ask))
    try:
        prompt = preview(session.tree, session.rendering, messages, ask.tools, session.spec.history)
    except RenderError as error:
        raise Problem("bad_request", error.message, param="messages") from error
    await wire.whole(200, said(len(prompt.ids)))


@dataclass
class _Sampling:
    """What has been sampled so far."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    routing: list[Any] = field(default_factory=list)
    finish: Finish | None = None
    first_token_at: float | None = None
    reply: Reply | None = None


class Exchange:
    """One request. `prepare` refuses it by raising Problem, or makes it ready for `run`."""

    ask: Ask
    prompt: Prompt
    sampling: Sampling
    kind: CallKind
    parser: StreamParser

    def __init__(self, session: Session, dialect: Dialect, wire: Wire) -> None:
        self.session = session
        self.dialect = dialect
        self.wire = wire
        self.started_at = time.time()
        self.seq = session.tree.reserve()
        self.mint = Mint()
        self.volatile = 0
        self.foreign = ""
        self._seen: dict[str, Any] = {}

    def prepare(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        session = self.session
        session.check_caps()
        ask = self.dialect.read(body, session.memory)
        messages, self.volatile = session.spec.rules.settle(session.conversation(ask))
        self.ask = replace(ask, messages=messages)
        digest, tools = session.tools_json(ask.tools)
        self._seen = {"wishes": self._wishes(), "tools_digest": digest, "tools": tools}
        self.foreign = session.foreign_client(headers.get("User-Agent", ""))
        self.kind = session.spec.rules.kind(headers, messages, len(ask.tools), ask.wishes)
        tree = session.tree
        if self.foreign:
            # A tree of its own: it shares nothing with the harness's calls, and changes no fate.
            self.kind, tree = "auxiliary", CallTree()
        try:
            self.prompt = compose(tree, session.rendering, messages, ask.tools, session.spec.history)
            for seq, fate in self.prompt.fates.items():
                session.fate(seq, fate)
            self._seen |= {"messages": self._messages()}
            self.parser = session.rendering.parser(self.prompt.ids, ask.tools)
            self.sampling = session.admit(len(self.prompt.ids))
        except RenderError as error:
            raise Problem("bad_request", error.message, param="messages") from error
        except Problem:
            raise
        except Exception as error:
            raise self._fault(error) from error

    def reject(self, problem: Problem) -> None:
        self.session.reject(problem, self.dialect.name, seq=self.seq, started_at=self.started_at, **self._seen)

    async def run(self) -> None:
        """Sample, tell, record. The tree knows the call before the harness can know its end."""
        session, ask = self.session, self.ask
        writer = self.dialect.writer(ask, self.mint, session.spec.model_name, int(self.started_at))
        sofar = _Sampling()
        if ask.stream:
            self.wire.stream(writer.opening(len(self.prompt.ids)), writer.ping)
        call: Call | None = None
        try:
            await self._sample(sofar, writer)
            finish = cast(Finish, sofar.finish)
            reply = sofar.reply = self._read(sofar, finish)
            call = self._enter(sofar, finish, reply, Fate.DELIVERED)
            if ask.remember:
                session.remember(ask, self.prompt.place, call.seq, reply.message)
            usage = Usage(len(self.prompt.ids), len(sofar.ids))
            await self.wire.stop_keeping()
            if ask.stream:
                await self.wire.finish(writer.deltas(reply.tail) + writer.closing(finish, usage))
            else:
                await self.wire.whole(200, writer.whole(reply.message, finish, usage))
            self._report(call, reply, sofar, 200, "")
        except (asyncio.CancelledError, ConnectionError):
            self._abandon(call, sofar, Problem("client_gone", "the client went away"))
            raise
        except Exception as error:
            problem = self._fault(error)
            self._abandon(call, sofar, problem)
            await self._tell(problem, writer)
        finally:
            await self.wire.stop_keeping()

    async def _sample(self, sofar: _Sampling, writer: ReplyWriter) -> None:
        """Sample the reply and stream it. The trial's clock runs only while the harness keeps us waiting."""
        session = self.session
        request = GenerationRequest(f"{session.spec.id}/{self.seq}", session.spec.id, self.prompt.ids, self.sampling)
        pieces = session.engine.generate(request)
        try:
            while sofar.finish is None:
                with session.clock.pause():
                    piece = await anext(pieces, None)
                if piece is None:
                    raise EngineError("generation ended without saying why")
                self._take(piece, sofar)
                if self.ask.stream:
                    await self.wire.send(writer.deltas(self.parser.feed(piece.ids)))
        finally:
            close = getattr(pieces, "aclose", None)
            if close is not None:
                with session.clock.pause():
                    await close()

    def _take(self, piece: Sampled, sofar: _Sampling) -> None:
        if len(piece.logprobs) != len(piece.ids) and self.session.engine.sampler == "policy":
            raise EngineError(f"{len(piece.ids)} sampled ids came with {len(piece.logprobs)} log-probs")
        if sofar.first_token_at is None and piece.ids:
            sofar.first_token_at = time.time()
        sofar.ids.extend(piece.ids)
        sofar.logprobs.extend(piece.logprobs)
        if piece.routing is not None:
            sofar.routing.append(piece.routing)
        if piece.finish == "abort":
            raise EngineError("generation was aborted")
        within = self.session.sampled(len(piece.ids))
        sofar.finish = piece.finish or (None if within else "length")

    def _read(self, sofar: _Sampling, finish: Finish) -> Reply:
        """The whole reply with its minted ids. To be called once."""
        if not self.ask.stream:
            self.parser.feed(sofar.ids)
        reply = self.parser.finish(finish)
        calls = tuple(replace(c, id=self.mint.call_id(i)) for i, c in enumerate(reply.message.tool_calls))
        return replace(reply, message=replace(reply.message, tool_calls=calls, mark=self.mint.mark))

    def _enter(self, sofar: _Sampling, finish: Finish, reply: Reply, fate: Fate) -> Call:
        session = self.session
        return self.prompt.enter(
            session.tree,
            np.asarray(sofar.ids, dtype=np.int32),
            np.asarray(sofar.logprobs, dtype=np.float32) if session.engine.sampler == "policy" else None,
            finish,
            reply.message,
            seq=self.seq,
            fate=fate,
            kind=self.kind,
            sampler=session.engine.sampler,
            policy_version=session.spec.policy_version,
            apart=bool(self.foreign),
        )

    def _abandon(self, call: Call | None, sofar: _Sampling, problem: Problem) -> None:
        """The harness does not have the whole reply: keep what was sampled, out of the loss."""
        if call is not None:
            self.session.tree.settle(call, Fate.ABANDONED)
        elif sofar.ids:
            try:
                sofar.reply = sofar.reply or self._read(sofar, "abort")
                call = self._enter(sofar, "abort", sofar.reply, Fate.ABANDONED)
            except LegoError as error:
                self.session.fault(error)
        if call is None:
            self.reject(problem)
        else:
            self._report(call, sofar.reply, sofar, problem.status, problem.reason)

    async def _tell(self, problem: Problem, writer: ReplyWriter) -> None:
        await self.wire.stop_keeping()
        if self.wire.begun:
            await self.wire.finish(writer.failure(problem))
        else:
            await self.wire.whole(problem.status, self.dialect.problem(problem))

    def _fault(self, error: Exception) -> Problem:
        """Our own failure, as the harness hears it: worth trying again."""
        self.session.fault(error)
        if isinstance(error, EngineError):
            return Problem("engine_fault", str(error))
        log.error("session %s, request %s: %r", self.session.spec.id, self.seq, error, exc_info=error)
        return Problem("proxy_fault", str(error) or type(error).__name__)

    def _report(self, call: Call, reply: Reply | None, sofar: _Sampling, status: int, reason: str) -> None:
        self.session.report(
            FinishedCall(
                seq=call.seq,
                parent_seq=call.parent_id,
                shared=call.shared,
                kind=self.kind,
                sampler=call.sampler,
                policy_version=call.policy_version,
                dialect=self.dialect.name,
                added_prompt_ids=call.added_prompt_ids,
                completion_ids=call.completion_ids,
                logprobs=call.logprobs,
                prompt_tokens=call.prompt_length,
                finish=call.finish,
                fate=call.fate.value,
                status=status,
                reason=reason,
                messages=self._seen["messages"],
                reply=None if reply is None else self._reply_json(reply),
                tools_digest=self._seen["tools_digest"],
                tools=self._seen["tools"],
                wishes=self._seen["wishes"],
                drift=self._drift(),
                started_at=self.started_at,
                first_token_at=sofar.first_token_at,
                ended_at=time.time(),
                **self._routing(call, sofar),
            ),
            malformed=len(reply.malformed) if reply is not None else 0,
        )

    def _routing(self, call: Call, sofar: _Sampling) -> dict[str, Any]:
        """What the call adds to its parent's: from the last shared id on, over which the parent may not have run."""
        if not sofar.routing:
            return {}
        begin = max(0, call.shared - 1)
        return {"routing_begin": begin, "routing": np.concatenate(sofar.routing)[begin:]}

    def _reply_json(self, reply: Reply) -> dict[str, Any]:
        out = message_json(reply.message)
        if reply.malformed:
            out["malformed"] = list(reply.malformed)
        return out

    def _wishes(self) -> dict[str, Any]:
        spec = self.session.spec
        asked = dict(self.ask.wishes)
        if self.ask.model != spec.model_name:
            asked["model"] = self.ask.model
        ours: dict[str, tuple[Any, ...]] = {
            **_NO_CHANGE,
            "temperature": (spec.temperature,),
            "max_tokens": (spec.caps.max_output_tokens,),
            "max_completion_tokens": (spec.caps.max_output_tokens,),
            "max_output_tokens": (spec.caps.max_output_tokens,),
        }
        return {key: value for key, value in asked.items() if value not in ours.get(key, ())}

    def _messages(self) -> dict[str, Any]:
        place, messages = self.prompt.place, self.ask.messages
        kept = 0
        out: dict[str, Any] = {}
        if isinstance(place, Continue):
            kept = len(messages) - len(place.tail)
        elif isinstance(place, Fork):
            kept = place.at
        if kept:
            out["of"] = cast("Continue | Fork", place).call.seq
        return {"kept": kept, **out, "new": [message_json(m) for m in messages[kept:]]}

    def _drift(self) -> dict[str, Any]:
        """Why the call is no plain continuation: nothing for one that is, and for the first."""
        prompt = self.prompt
        if self.foreign:
            return {"foreign": self.foreign}
        out: dict[str, Any] = {}
        if prompt.how == "forked" or (prompt.how == "root" and any(c.seq < self.seq for c in self.session.tree)):
            out = {"how": prompt.how, **difference(prompt.place, self.ask.messages)}
        out |= {"spliced": prompt.spliced, "rerendered": prompt.rerendered, "volatile": self.volatile}
        return {key: value for key, value in out.items() if value}
