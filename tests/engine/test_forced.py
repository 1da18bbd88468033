from __future__ import annotations

import numpy as np
import pytest

from lego.engine.base import GenerationRequest, Sampling
from lego.engine.forced import ForcedEngine
from lego.engine.transformers import TransformersEngine
from lego.errors import EngineError

PROMPT = np.arange(10, 30, dtype=np.int32)
STOP = 2


def request(name: str, prompt: np.ndarray = PROMPT, max_tokens: int = 100, heat: float = 1.0) -> GenerationRequest:
    return GenerationRequest(f"s/{name}", "s", prompt, Sampling(max_tokens, heat, (STOP,)))


async def collect(engine: ForcedEngine, asked: GenerationRequest) -> tuple[list[int], list[float], str | None]:
    ids: list[int] = []
    logprobs: list[float] = []
    finish = None
    async for piece in engine.generate(asked):
        assert len(piece.ids) == len(piece.logprobs)
        ids += piece.ids
        logprobs += piece.logprobs
        finish = piece.finish
    return ids, logprobs, finish


async def test_each_reply_comes_with_what_the_policy_gives_it_in_its_own_prompt(engine: TransformersEngine) -> None:
    forced = ForcedEngine(engine)
    turns = [[*range(40, 60), STOP], [7, 8, STOP]]
    forced.assign("s", turns)
    prompts = [PROMPT, np.concatenate([PROMPT, np.asarray([*turns[0], 5], np.int32)])]
    for number, (prompt, turn, heat) in enumerate(zip(prompts, turns, (1.0, 0.5), strict=True)):
        ids, logprobs, finish = await collect(forced, request(str(number), prompt, heat=heat))
        want = await engine.score(np.concatenate([prompt, np.asarray(turn, np.int32)]), len(prompt), heat)
        assert (ids, finish) == (turn, "stop")
        assert np.array_equal(np.asarray(logprobs, np.float32), want)
        record = forced.given[f"s/{number}"]
        assert np.array_equal(record.prompt_ids, prompt) and record.ids.tolist() == turn
        assert np.array_equal(record.logprobs, want)
    assert forced.sampler == "script", "what a script said is never trained by RL"


async def test_a_cut_reply_is_recorded_as_it_was_given_out(engine: TransformersEngine) -> None:
    forced = ForcedEngine(engine)
    forced.assign("s", [[*range(40, 60), STOP], [9, STOP]])
    ids, logprobs, finish = await collect(forced, request("cut", max_tokens=5))
    assert (ids, finish) == ([*range(40, 45)], "length")
    assert forced.given["s/cut"].ids.tolist() == ids and len(logprobs) == 5
    assert (await collect(forced, request("next")))[0] == [9, STOP]


async def test_an_unforeseen_request_takes_no_turn_even_when_it_is_asked_again(engine: TransformersEngine) -> None:
    forced = ForcedEngine(engine, aside=lambda prompt: [50, 51, STOP] if prompt[-1] == 99 else None)
    forced.assign("s", [[*range(60, 80), STOP]])
    odd = np.append(PROMPT, np.int32(99))
    stream = forced.generate(request("gone", odd))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await collect(forced, request("again", odd)))[0] == [50, 51, STOP]
    assert (await collect(forced, request("main")))[0] == [*range(60, 80), STOP]
    with pytest.raises(EngineError, match="run out"):
        await collect(forced, request("more"))
    assert (await collect(forced, request("odd", odd)))[0] == [50, 51, STOP], "also when the script is over"


async def test_it_scores_as_its_policy_does(engine: TransformersEngine) -> None:
    assert np.array_equal(await ForcedEngine(engine).score(PROMPT, 4), await engine.score(PROMPT, 4))
