from __future__ import annotations

import numpy as np
import pytest

from lego.engine.base import GenerationRequest, PolicyRef, Sampling
from lego.engine.scripted import ScriptedEngine
from lego.errors import EngineError

PROMPT = np.arange(4, dtype=np.int32)
STOP = 2


def request(session: str = "s", max_tokens: int = 100) -> GenerationRequest:
    return GenerationRequest("r", session, PROMPT, Sampling(max_tokens, 1.0, (STOP,)))


async def collect(engine: ScriptedEngine, asked: GenerationRequest) -> tuple[list[int], str | None, int]:
    ids: list[int] = []
    finish, pieces = None, 0
    async for piece in engine.generate(asked):
        assert finish is None and not piece.logprobs
        ids += piece.ids
        finish, pieces = piece.finish, pieces + 1
    return ids, finish, pieces


async def test_turns_come_in_order_and_in_pieces() -> None:
    engine = ScriptedEngine()
    long = [*range(10, 40), STOP]
    engine.assign("s", [long, [7, STOP]])
    engine.assign("t", [[8, STOP]])
    ids, finish, pieces = await collect(engine, request())
    assert (ids, finish) == (long, "stop")
    assert pieces > 1
    assert (await collect(engine, request("t")))[0] == [8, STOP]
    assert (await collect(engine, request()))[0] == [7, STOP]
    assert engine.sampler == "script"
    assert engine.stats().sampled_tokens == len(long) + 4


@pytest.mark.parametrize("given", [True, False])
async def test_no_turn_left_is_the_tasks_fault(given: bool) -> None:
    engine = ScriptedEngine()
    if given:
        engine.assign("s", [])
    with pytest.raises(EngineError, match="run out" if given else "not been given") as error:
        await collect(engine, request())
    assert error.value.fault == "task"


async def test_a_cut_turn_is_repeated_and_an_over_long_one_is_not() -> None:
    engine = ScriptedEngine()
    engine.assign("s", [[*range(10, 30), STOP], [5, STOP]])
    stream = engine.generate(request())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert engine.stats().running == 0
    ids, finish, _ = await collect(engine, request(max_tokens=6))
    assert (ids, finish) == ([*range(10, 16)], "length")
    assert (await collect(engine, request()))[0] == [5, STOP]


async def test_an_empty_turn_is_refused() -> None:
    with pytest.raises(EngineError, match="empty turn"):
        ScriptedEngine().assign("s", [[1, STOP], []])


async def test_a_script_has_a_version_but_no_probabilities() -> None:
    engine = ScriptedEngine()
    await engine.load(PolicyRef(3, "anywhere", ""))
    assert engine.policy_version == 3
    with pytest.raises(EngineError, match="no probabilities"):
        await engine.score(PROMPT, 1)


async def test_an_ended_session_is_forgotten() -> None:
    engine = ScriptedEngine()
    engine.assign("s", [[1, STOP]])
    engine.end_session("s")
    with pytest.raises(EngineError, match="not been given"):
        await collect(engine, request())
