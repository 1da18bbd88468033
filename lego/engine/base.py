"""The whole contract between lego and whatever samples from the policy."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from lego.policy import PolicyRef

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Sampling:
    """What the run samples with. Nothing here shapes the distribution but the temperature (0 is greedy)."""

    max_tokens: int
    temperature: float = 1.0
    stop_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True)
class GenerationRequest:
    """`session` names the conversation, so that an engine can keep its prefix warm. `prompt_ids` is [n] int32."""

    id: str
    session: str
    prompt_ids: IntArray
    sampling: Sampling


@dataclass(frozen=True)
class Sampled:
    """Newly sampled ids and, one each, the log-probability (nats) under the distribution they were sampled from.

    The stop id is part of `ids`. `finish` is set on the last piece alone. `logprobs` is empty only where nothing
    was sampled from a policy (`sampler == "script"`).
    routing: where experts are recorded, [new tokens, layers, k] int16: of the tokens that the model has run over since
    the piece before; the prompt's with the first piece. The last sampled id is not run over.
    """

    ids: Sequence[int]
    logprobs: Sequence[float]
    finish: Finish | None = None
    routing: npt.NDArray[np.int16] | None = None


@dataclass(frozen=True)
class EngineStats:
    """Counters since start: requests and tokens; prefill tokens saved by prefix reuse."""

    requests: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    sampled_tokens: int = 0
    running: int = 0
    waiting: int = 0
    extra: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Token ids in, token ids out. Log-probs are those of the distribution sampled from.

    Closing (or cancelling) the iterator of `generate` cancels the generation. Faults are EngineError.
    """

    sampler: Literal["policy", "script"]
    policy_version: int

    def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]: ...

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        """Teacher-forced log-probs of ids[start:], [n - start] float32, same distribution as sampling (start >= 1)."""
        ...

    async def load(self, policy: PolicyRef) -> None:
        """Swap weights; every cached prefix is dropped. Proven by a probe before it returns."""
        ...

    def end_session(self, session: str) -> None:
        """The conversation is over; what was cached for it may go."""
        ...

    def stats(self) -> EngineStats: ...

    async def close(self) -> None: ...
