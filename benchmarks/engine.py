"""Tokens per second of the embedded engine, beside `transformers.generate` on the same model in the same run.

    python benchmarks/engine.py [--policy FOLDER] [--threads 1] [--tokens 64]

Without --policy a tiny random policy is made. Each line gives sampled tokens over wall-clock seconds and over this
process's CPU seconds (what stays comparable on a busy machine); `x` is the ratio of the latter to the first line's.
The last two lines play conversations of several turns with and without kept prefixes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from lego.config.schema import EngineSection
from lego.engine.base import Engine, GenerationRequest, IntArray, PolicyRef, Sampling
from lego.engine.open import open_engine

PROMPT, ADDED, TURNS = 200, 40, 8


class Table:
    """Prints a line for each measured block; the first is the base of the ratios."""

    base = 0.0

    @contextmanager
    def line(self, label: str, tokens: int) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        self.base = self.base or tokens / cpu
        print(f"{label:44} {tokens / wall:6.0f} tok/s {tokens / cpu:6.0f} tok/cpu-s  x {tokens / cpu / self.base:.1f}")


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


def generate_one_by_one(table: Table, policy: Path, prompts: list[IntArray], tokens: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(policy)
    with table.line("transformers.generate, 1 at a time", len(prompts) * tokens):
        for prompt in prompts:
            ids = torch.from_numpy(prompt.astype(np.int64))[None]
            every = torch.ones_like(ids)
            model.generate(ids, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, attention_mask=every)


async def measure(policy: Path, threads: int, tokens: int) -> None:
    engine = open_engine(EngineSection(threads=threads, max_concurrent=32))
    await engine.load(PolicyRef(0, str(policy), ""))
    rng = np.random.default_rng(0)
    prompts = [rng.integers(9, 300, PROMPT).astype(np.int32) for _ in range(32)]
    await reply(engine, "warm-up", prompts[0], 8)
    table = Table()
    generate_one_by_one(table, policy, prompts[:4], tokens)
    for n in (1, 4, 8, 16, 32):
        with table.line(f"engine, {n} at a time", n * tokens):
            await asyncio.gather(*(reply(engine, f"{n}-{i}", prompts[i][::-1].copy(), tokens) for i in range(n)))
        for i in range(n):
            engine.end_session(f"{n}-{i}")
    for fresh, label in ((True, "no prefix kept"), (False, "prefixes kept")):
        with table.line(f"8 conversations of {TURNS} turns, {label}", 8 * TURNS * 24):
            await asyncio.gather(*(conversation(engine, f"c{fresh}{i}", prompts[i], 24, fresh) for i in range(8)))
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=64)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", str(arguments.threads))
    with tempfile.TemporaryDirectory() as folder:
        policy = arguments.policy
        if policy is None:
            from lego.trainer.tiny import make_tiny

            policy = Path(folder)
            make_tiny(policy, 0, [Path(__file__).read_text(encoding="utf-8")])
        asyncio.run(measure(policy, arguments.threads, arguments.tokens))


if __name__ == "__main__":
    main()
