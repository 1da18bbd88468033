"""An engine that follows a script: for checks and demonstrations. What it gives is never trained by RL."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Literal

from lego.engine.base import EngineStats, FloatArray, GenerationRequest, IntArray, PolicyRef, Sampled
from lego.errors import EngineError

_PIECE = 8


class ScriptedEngine:
    """Each session has its turns, given by `assign`; each request of the session takes the next one."""

    sampler: Literal["policy", "script"] = "script"

    def __init__(self) -> None:
        self.policy_version = 0
        self._turns: dict[str, deque[tuple[int, ...]]] = {}
        self._requests = self._prompt_tokens = self._sampled_tokens = self._running = 0

    def assign(self, session: str, turns: Sequence[Sequence[int]]) -> None:
        """Say what `session` gets: completion ids (stop id included) of its first request, its second, and so on.

        Raises EngineError for a turn without ids.
        """
        if not all(turns):
            raise EngineError(f"the script of session {session} has an empty turn", fault="task")
        self._turns[session] = deque(tuple(turn) for turn in turns)

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        """Stream the session's next turn in several pieces. A turn longer than max_tokens is cut there (the rest is
        lost, as a policy's would be). A request cancelled before its end leaves the turn for the next one.

        Raises EngineError when the session has no script, or no turn left.
        """
        turn = self._next_turn(request)
        ids = turn[: request.sampling.max_tokens]
        self._requests += 1
        self._prompt_tokens += len(request.prompt_ids)
        self._running += 1
        done = False
        try:
            logprobs = await self._weigh(request, ids)
            for begin in range(0, len(ids), _PIECE):
                piece = ids[begin : begin + _PIECE]
                last = begin + _PIECE >= len(ids)
                done = last
                stopped = ids[-1] in request.sampling.stop_ids
                self._sampled_tokens += len(piece)
                yield Sampled(
                    piece, logprobs[begin : begin + _PIECE], ("stop" if stopped else "length") if last else None
                )
                await asyncio.sleep(0)
        finally:
            self._running -= 1
            if not done and request.session in self._turns:
                self._turns[request.session].appendleft(turn)

    def _next_turn(self, request: GenerationRequest) -> tuple[int, ...]:
        turns = self._turns.get(request.session)
        if not turns:
            raise EngineError(
                f"the script of session {request.session} has {'run out' if turns is not None else 'not been given'}",
                hint="the harness asked for more turns than the demonstration has",
                fault="task",
            )
        return turns.popleft()

    async def _weigh(self, request: GenerationRequest, ids: tuple[int, ...]) -> Sequence[float]:
        """The log-probs of what is about to be said: none, for nothing was sampled."""
        return ()

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        raise EngineError("a script has no probabilities", fault="user")

    async def load(self, policy: PolicyRef) -> None:
        """A script is what it is whatever the policy; only the version is taken over."""
        self.policy_version = policy.version

    def end_session(self, session: str) -> None:
        self._turns.pop(session, None)

    def stats(self) -> EngineStats:
        return EngineStats(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            sampled_tokens=self._sampled_tokens,
            running=self._running,
        )

    async def close(self) -> None:
        self._turns.clear()
