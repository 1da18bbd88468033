"""Probes of the engine: does the policy load, sample, and agree with itself?"""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np

from lego.engine.base import GenerationRequest, Sampling
from lego.engine.open import open_engine
from lego.errors import LegoError
from lego.probes.finding import Finding
from lego.rollout.run import Run
from lego.trainer.gate import gap_bound
from lego.trajectory.messages import Message
from lego.trajectory.render import open_rendering
from lego.trajectory.tokenizer import load_tokenizer

_TOKENS = 32


async def probe(run: Run) -> AsyncIterator[Finding]:
    """Loads the newest policy, samples a few tokens, and scores them teacher-forced: the two must agree."""
    try:
        policy = run.newest_policy()
        rendering = open_rendering(load_tokenizer(policy.path), run.config.policy.renderer, run.config.policy.model)
    except LegoError as error:
        yield Finding("policy", False, str(error), error.hint)
        return
    where = f"at {policy.path}" if policy.version else f"from {run.config.policy.model}"
    yield Finding("policy", True, f"version {policy.version} {where}, rendered as {rendering.name}")
    if run.config.engine.kind == "scripted":
        yield Finding("engine", True, "scripted: follows demonstrations, samples nothing")
        return
    engine = None
    try:
        engine = open_engine(run.config.engine, run.config.policy.context)
        await engine.load(policy)
        prompt = np.asarray(rendering.render([Message("user", "Say something.")], []), dtype=np.int32)
        sampling = Sampling(max_tokens=_TOKENS, temperature=run.config.rollout.temperature, seed=run.config.run.seed)
        ids: list[int] = []
        logprobs: list[float] = []
        async for piece in engine.generate(GenerationRequest("probe", "probe", prompt, sampling)):
            ids += piece.ids
            logprobs += piece.logprobs
        whole = np.concatenate([prompt, np.asarray(ids, dtype=np.int32)])
        scored = await engine.score(whole, len(prompt), run.config.rollout.temperature)
        gaps = np.abs(scored - np.asarray(logprobs, dtype=np.float32))
        bound = gap_bound(run.config.train.gate, run.config.engine.dtype)
        text = (
            f"{run.config.engine.kind} sampled {len(ids)} tokens; sampling and scoring differ by {gaps.mean():.1e} nats"
            f" on average, {gaps.max():.1e} at most"
        )
        yield Finding("engine", bool(gaps.mean() <= bound), text, f"train.gate.mean_logp_gap is {bound:g}")
    except LegoError as error:
        yield Finding("engine", False, str(error), error.hint)
    finally:
        if engine is not None:
            await engine.close()
