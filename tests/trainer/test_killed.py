"""A step killed with SIGKILL at any point of it and taken again: the parameters of a step that nobody disturbed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lego.config.schema import Config, LoraSection
from lego.policy import PolicyRef
from lego.rundb import catalogue, rounds
from lego.rundb.catalogue import TaskEntry
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.trainer.advance import train_round
from tests.trainer._sampled import sample
from tests.trainer.test_assemble import call, play


def config(rank: int) -> Config:
    """rank: of an adapter that is trained in the place of the weights; 0: none."""
    made = Config()
    made.train.lora = LoraSection(rank=rank, alpha=8.0, export="adapter")
    made.engine.threads = 1
    made.train.optimizer.lr = 1e-3
    made.train.micro_batch_tokens = 10  # a segment each: four signs of scoring, then two of each optimizer step
    made.train.minibatches = 2
    return made


def played(folder: Path, policy: Path, rewards: Sequence[float] = (0.0, 1.0)) -> Store:
    """A run whose first round is sampled from the policy and graded, with these rewards in turn."""
    store = Store.open(folder / "run.db")
    catalogue.register_tasks(store, [TaskEntry("a", "train", "a", "test", "", "")])
    play_round(
        store, catalogue.add_policy(store, parent=None, path=str(policy), digest="d", made_by="start"), 1, rewards
    )
    return store


def play_round(store: Store, policy: PolicyRef, ordinal: int, rewards: Sequence[float] = (0.0, 1.0)) -> Round:
    segments = sample(Path(policy.path), turns=1)
    round_ = rounds.open_round(
        store, "train", ordinal=ordinal, policy_version=policy.version, tasks=[("a", "h")], samples=len(segments),
        settings={"temperature": 1.0},
    )  # fmt: skip
    for number, segment in enumerate(segments):
        first = int(np.flatnonzero(segment.mask)[0])
        recorded = call(
            1, added_prompt_ids=segment.ids[:first], completion_ids=segment.ids[segment.mask],
            logprobs=segment.logprobs[segment.mask], prompt_tokens=first, policy_version=policy.version,
        )  # fmt: skip
        play(store, round_, rewards[number % len(rewards)], recorded=[recorded])
    return round_


def train(folder: Path, die_at: int, rank: int) -> PolicyRef | None:
    """Take the open round's step, and die by SIGKILL when the so-manyth sign of progress is given (-1: while the
    checkpoint is written)."""
    seen = 0

    def progress(done: int, total: int) -> None:
        nonlocal seen
        seen += 1
        if seen == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    if die_at == -1:
        import lego.trainer.step as step_module

        step_module.copy_companions = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    store = Store.open(folder / "run.db")
    try:
        round_ = rounds.latest(store, "train")
        assert round_ and round_.open
        return asyncio.run(train_round(store, round_, config(rank), folder / "policies", progress)).policy
    finally:
        store.close()


def weights(policy: PolicyRef | None) -> bytes:
    assert policy
    whole, adapter = (Path(policy.path) / name for name in ("model.safetensors", "adapter/adapter_model.safetensors"))
    return (whole if whole.exists() else adapter).read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tiny_policy, tmp_path_factory):
    """By rank."""
    ended = {}
    for rank in (0, 2):
        folder = tmp_path_factory.mktemp("straight")
        played(folder, tiny_policy).close()
        ended[rank] = weights(train(folder, 0, rank))
    return ended


@pytest.mark.parametrize(("die_at", "rank"), [(2, 0), (7, 0), (-1, 0), (7, 2)])
def test_the_step_taken_again_ends_bit_equal(tiny_policy, undisturbed, tmp_path, die_at, rank):
    played(tmp_path, tiny_policy).close()
    code = f"from tests.trainer.test_killed import *; train(Path({str(tmp_path)!r}), {die_at}, {rank})"
    dead = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert dead.returncode == -signal.SIGKILL, dead.stderr[-2000:]
    assert weights(train(tmp_path, 0, rank)) == undisturbed[rank]
    assert not list((tmp_path / "policies").glob(".*"))
