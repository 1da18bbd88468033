"""Sampled tokens per CPU second of the embedded engine, beside `transformers.generate` on the same model.

A tiny random policy on one thread. CPU seconds are this process's own: they stay comparable on a busy machine. The
conversations of several turns are measured with and without kept prefixes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.measure import Measure, interleaved
from lego.config.schema import EngineSection
from lego.engine.base import Engine, GenerationRequest, IntArray, PolicyRef, Sampling
from lego.engine.open import open_engine

PROMPT, ADDED = 200, 40
TOKENS, TURNS, TURN_TOKENS = 64, 8, 24
WIDTHS = (1, 4, 8, 16, 32)
REPEATS = 3


async def reply(engine: Engine, session: str, prompt: IntArray, tokens: int) -> list[int]:
    ids: list[int] = []
    async for piece in engine.generate(GenerationRequest(session, session, prompt, Sampling(tokens, 1.0, (), 0))):
        ids += piece.ids
    return ids


async def conversation(engine: Engine, session: str, prompt: IntArray, tokens: int, fresh_session: bool) -> None:
    added = prompt[:ADDED]
    for turn in range(TURNS):
        # A session name of its own for every turn, ended at once, is what no prefix cache would be.
        name = f"{session}-{turn}" if fresh_session else session
        ids = await reply(engine, name, prompt, tokens)
        prompt = np.concatenate([prompt, np.asarray(ids, np.int32), added])
        if fresh_session:
            engine.end_session(name)
    engine.end_session(session)


def generate_one_by_one(policy: Path, prompts: list[IntArray]) -> Callable[[], None]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)

    def generate() -> None:
        for prompt in prompts:
            ids = torch.from_numpy(prompt.astype(np.int64))[None]
            every = torch.ones_like(ids)
            model.generate(ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=True, attention_mask=every)

    return generate


async def at_once(engine: Engine, prompts: list[IntArray]) -> None:
    names = [f"s{number}" for number in range(len(prompts))]
    await asyncio.gather(*(reply(engine, name, prompt, TOKENS) for name, prompt in zip(names, prompts, strict=True)))
    for name in names:
        engine.end_session(name)


async def conversations(engine: Engine, prompts: list[IntArray], fresh: bool) -> None:
    turns = (conversation(engine, f"c{fresh}{n}", prompt, TURN_TOKENS, fresh) for n, prompt in enumerate(prompts))
    await asyncio.gather(*turns)


def _finish(runner: asyncio.Runner, work: Callable[[], Coroutine[None, None, None]]) -> None:
    runner.run(work())


def _rate(work: Callable[[], None], tokens: int) -> Callable[[], float]:
    """Tokens over this process's CPU seconds."""

    def side() -> float:
        begun = time.process_time()
        work()
        return tokens / (time.process_time() - begun)

    return side


def run() -> list[Measure]:
    from lego.trainer.tiny import make_tiny

    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(0)
    prompts = [rng.integers(9, 300, PROMPT).astype(np.int32) for _ in range(max(WIDTHS))]
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner() as runner:
        policy = Path(folder)
        make_tiny(policy, 0, [Path(__file__).read_text(encoding="utf-8")])
        engine = open_engine(EngineSection(threads=1, max_concurrent=max(WIDTHS)))
        runner.run(engine.load(PolicyRef(0, str(policy), "")))
        plain = generate_one_by_one(policy, prompts[:4])
        sides = {"plain": _rate(plain, 4 * TOKENS)}
        for width in WIDTHS:
            work = partial(at_once, engine, prompts[:width])
            sides[f"{width}"] = _rate(partial(_finish, runner, work), width * TOKENS)
        talk = 8 * TURNS * TURN_TOKENS
        for fresh, label in ((True, "fresh"), (False, "kept")):
            work = partial(conversations, engine, prompts[:8], fresh)
            sides[label] = _rate(partial(_finish, runner, work), talk)
        rates = interleaved(sides, REPEATS)
        runner.run(engine.close())
    unit, peer = "tok/CPU s", "transformers.generate, 1 at a time"
    measures = [Measure(f"replies, {n} at once", unit, rates[f"{n}"], rates["plain"], peer) for n in WIDTHS]
    said = f"8 conversations of {TURNS} turns"
    return [*measures, Measure(said, unit, rates["kept"], rates["fresh"], "the same, no prefix kept")]
