"""Does vLLM sample from the policy it was told to? Its log-probs against another implementation's forward pass."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from lego.engine.base import FloatArray, IntArray
from lego.engine.policy import PROBE_GAP, teacher_forced
from lego.engine.routing import UNKNOWN, RoutingArray, RoutingReplay
from lego.errors import EngineError


@dataclass(frozen=True)
class Said:
    """Sampled ids and their log-probs, nats. routing: [prompt and reply but its last id, layers, k], the experts that
    each token went to, UNKNOWN where it came from the prefix cache; None where they are not recorded."""

    ids: list[int]
    logprobs: list[float]
    routing: RoutingArray | None = None


Reply = Callable[[IntArray, int, float], Awaitable[Said]]
"""(prompt ids [n] int32, tokens, temperature) -> what was sampled, always with the same seed."""

_PROMPT = 24
_TOKENS = 16
_TURN = 160
"""Ids that the second turn adds: more than a block of the prefix cache, so that the third finds one there."""
_TEMPERATURES = (1.0, 0.7, 1.0)
_AGREED = 0.8
"""Least share of the engine's experts that the policy must choose as well."""


@dataclass(frozen=True)
class Proof:
    """Three replies. `ids`: what was sampled; `engine`, `model`: their log-probs by either, float32, nats.
    `agreed`: of the engine's experts the share that the model would have chosen; nan where they are not recorded."""

    ids: tuple[int, ...]
    engine: FloatArray
    model: FloatArray
    agreed: float

    @property
    def gap(self) -> float:
        """The largest |difference|; nan where a log-prob is not a number."""
        return float(np.max(np.abs(self.engine - self.model)))


async def prove(model: PreTrainedModel, reply: Reply, context: int, before: Proof | None) -> Proof:
    """Let the engine sample two turns, the second of them again from its prefix cache, and score them with `model`.

    Where the engine records the experts of a mixture, `model` sends each token to the same: in bfloat16 a rounding
    makes it choose another one now and then, which moves a log-prob by more than all other rounding. Its choices are
    held against the engine's by themselves.

    `context` bounds prompt and reply (tokens, at least 64). `before` is the proof of another policy, which the engine
    held until now. Raises EngineError when the log-probs differ by more than the dtype's bound, when too many experts
    are other ones, or when the log-probs are to the last bit those of `before` although the model's are not.
    """
    vocabulary = model.config.get_text_config().vocab_size
    text = np.asarray([(7919 * i + 13) % vocabulary for i in range(_PROMPT + _TURN)], np.int32)
    prompt = text[:_PROMPT]
    ids: list[int] = []
    engine: list[float] = []
    parts: list[FloatArray] = []
    replay, known = RoutingReplay(model), None
    for turn, temperature in enumerate(_TEMPERATURES):
        said = await reply(prompt, _TOKENS, temperature)
        ids += said.ids
        engine += said.logprobs
        whole = np.concatenate([prompt, np.asarray(said.ids, np.int32)])
        known = _completed(said.routing, known, len(prompt))
        replay.follow(known)
        with torch.inference_mode():
            parts.append(teacher_forced(model, whole, len(prompt), temperature))
        if turn == 0:
            prompt = np.concatenate([whole, text[_PROMPT:]])[: context - _TOKENS]
    proof = Proof(tuple(ids), np.asarray(engine, np.float32), np.concatenate(parts), replay.agreed)
    if not proof.gap <= PROBE_GAP[model.dtype]:
        raise EngineError(
            f"vLLM does not sample from the policy it was given: log-probs differ by {proof.gap:.2g}",
            hint=f"it serves, or swaps in, {type(model).__name__} wrongly in {model.dtype}; engine.kind: transformers",
        )
    if proof.agreed < _AGREED:
        raise EngineError(
            f"vLLM does not choose the policy's experts: of its choices the policy makes {proof.agreed:.0%}",
            hint="it serves, or swaps in, the routers wrongly; engine.kind: transformers",
        )
    # One step of a small learning rate moves log-probs by less than the bound.
    if before and before.ids == proof.ids and np.array_equal(before.engine, proof.engine):
        moved = float(np.max(np.abs(before.model - proof.model)))
        if moved:
            raise EngineError(f"vLLM still samples from the policy before: log-probs should have moved by {moved:.2g}")
    return proof


def _completed(rows: RoutingArray | None, before: RoutingArray | None, prompt: int) -> RoutingArray | None:
    """`rows` with those of the cached part of the prompt, which the turn before has told: its tokens began alike."""
    if rows is None or before is None:
        return rows
    shared = min(prompt, len(before))
    return np.concatenate([np.where(rows[:shared] == UNKNOWN, before[:shared], rows[:shared]), rows[shared:]])
