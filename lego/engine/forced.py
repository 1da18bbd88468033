"""An engine that says what a script says, and keeps what the policy thinks of it: for proofs of a harness.

What it gives was chosen by the script, so it is never trained by RL; but the policy's log-probs of it, in the prompt
of that very request, are what the trainer must find again in the segments cut from the trial's calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from lego.engine.base import Engine, FloatArray, GenerationRequest, IntArray
from lego.engine.scripted import ScriptedEngine

Aside = Callable[[IntArray], Sequence[int] | None]
"""From a request's prompt ids to the reply that the script has no turn for (a summary, say), or None."""


@dataclass(frozen=True)
class Forced:
    """One reply: what the engine was given and what it said.

    prompt_ids: [n] int32. ids: [m] int32, the whole reply, of which a client that left early has seen less.
    logprobs: [m] float32, nats, the policy's for those ids after that prompt at the request's temperature.
    """

    prompt_ids: IntArray
    ids: IntArray
    logprobs: FloatArray


class ForcedEngine(ScriptedEngine):
    """A ScriptedEngine whose every token comes with the log-prob that `policy` gives it, by teacher forcing.

    `policy` is another engine, opened, loaded and closed by whoever made it. `aside` answers requests that the script
    does not foresee; what it says takes no turn. `given` holds every reply by request id.
    """

    def __init__(self, policy: Engine, aside: Aside = lambda prompt_ids: None) -> None:
        super().__init__()
        self.given: dict[str, Forced] = {}
        self._policy = policy
        self._aside = aside

    def _next_turn(self, request: GenerationRequest) -> tuple[int, ...]:
        said = self._aside(request.prompt_ids)
        turns = self._turns.get(request.session)
        if said is not None and turns is not None and (not turns or turns[0] != tuple(said)):
            turns.appendleft(tuple(said))
        return super()._next_turn(request)

    async def _weigh(self, request: GenerationRequest, ids: tuple[int, ...]) -> Sequence[float]:
        said = np.asarray(ids, dtype=np.int32)
        whole = np.concatenate([request.prompt_ids, said])
        logprobs = await self._policy.score(whole, len(request.prompt_ids), request.sampling.temperature)
        self.given[request.id] = Forced(request.prompt_ids, said, logprobs)
        return logprobs.tolist()

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        return await self._policy.score(ids, start, temperature)
