"""A real model's weights: what the engine samples is what the trainer scores, before and after a step."""

from __future__ import annotations

import numpy as np
import pytest

from lego.config.schema import EngineSection, OptimizerSection, TrainSection
from lego.engine.base import GenerationRequest, PolicyRef, Sampling
from lego.engine.digest import folder_digest
from lego.engine.open import open_engine
from lego.engine.transformers import TransformersEngine
from lego.trainer.batch import TrainSegment
from lego.trainer.step import Trainer
from lego.trajectory.arrays import as_ids
from lego.trajectory.messages import Message
from lego.trajectory.render import open_rendering
from lego.trajectory.tokenizer import load_tokenizer
from tests.conftest import smollm

TEMPERATURE = 0.7
QUESTIONS = ("Say hello.", "Which command shows the file notes.txt? Answer with the command alone.")


async def ask(engine, rendering, prompt: list[int], session: str, seed: int) -> tuple[list[int], list[float]]:
    sampling = Sampling(12, TEMPERATURE, rendering.stop_ids, seed)
    ids: list[int] = []
    logprobs: list[float] = []
    async for piece in engine.generate(GenerationRequest(session, session, as_ids(prompt), sampling)):
        ids += piece.ids
        logprobs += piece.logprobs
    return ids, logprobs


async def two_turns(engine, rendering, question: str, number: int) -> TrainSegment:
    """A conversation that goes on from its raw ids, with a mask on what was sampled."""
    prompt = rendering.render([Message("user", question)], ())
    ids, mask, logprobs = list(prompt), [False] * len(prompt), [0.0] * len(prompt)
    for turn in range(2):
        said, theirs = await ask(engine, rendering, ids, f"s{number}", 10 * number + turn)
        added = rendering.extend(as_ids(ids), as_ids(said), [Message("user", "And again?")], ())
        assert added is not None
        ids += [*said, *added]
        mask += [True] * len(said) + [False] * len(added)
        logprobs += [*theirs, *([0.0] * len(added))]
    return TrainSegment(
        trial_id=number, ids=as_ids(ids), mask=np.array(mask), logprobs=np.array(logprobs, np.float32),
        advantage=(1.0, -1.0)[number % 2],
    )  # fmt: skip


@pytest.mark.slow
async def test_a_step_on_real_weights_is_proven_and_sampled_from(tmp_path) -> None:
    folder = smollm()
    rendering = open_rendering(load_tokenizer(folder), "chatml")
    engine = open_engine(EngineSection(max_concurrent=2))
    assert isinstance(engine, TransformersEngine)
    try:
        await engine.load(PolicyRef(0, str(folder), folder_digest(folder)))
        segments = [await two_turns(engine, rendering, text, number) for number, text in enumerate(QUESTIONS)]
        section = TrainSection(optimizer=OptimizerSection(lr=1e-5), micro_batch_tokens=256)
        trainer = Trainer(folder, section, temperature=TEMPERATURE)
        report = trainer.step(segments)
        assert report.refused is None
        assert report.metrics["proof/correlation"] >= 0.999
        assert report.metrics["proof/max_gap"] < 1e-3
        assert report.metrics["step/grad_norm"] > 0
        trainer.save(tmp_path / "1")
        assert (tmp_path / "1" / "chat_template.jinja").is_file()
        after = trainer.score(segments)
        await engine.load(PolicyRef(1, str(tmp_path / "1"), folder_digest(tmp_path / "1")))
        for segment, scored, before in zip(segments, after, (s.logprobs for s in segments), strict=True):
            start = int(np.flatnonzero(segment.mask)[0])
            served = await engine.score(segment.ids, start, TEMPERATURE)
            mine = segment.mask[start:]
            assert np.abs(scored[start:][mine] - served[mine]).max() < 1e-3
            assert np.abs(served[mine] - before[start:][mine]).max() > 1e-3
    finally:
        await engine.close()
