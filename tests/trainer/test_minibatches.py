"""Several optimizer steps over one round: which of them are taken, and what pi_old is to each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lego.config.schema import DeepSpeedSection, GateSection, ObjectiveSection, TrainSection
from lego.trainer.batch import TrainSegment, split_trials
from lego.trainer.launch import put_segments
from lego.trainer.step import Trainer, hash_seed
from lego.trainer.tiny import make_tiny
from tests._tiny import CORPUS
from tests.trainer._sampled import sample, section, weights
from tests.trainer.test_deepspeed import ALL, furthest, require

GANG_SEED = 3
"""Of tests.trainer._gang."""


def open_gate(**changes) -> TrainSection:
    return section(gate=GateSection(99.0, 1e9, -1.0), **changes)


def half_flat(segments: list[TrainSegment], seed: int, first: bool) -> list[TrainSegment]:
    """Without an advantage in the first, or else the second, of the two mini-batches that `seed` makes of them."""
    flat = {segment.trial_id for segment in split_trials(segments, 2, hash_seed(seed, 0))[0 if first else 1]}
    return [replace(segment, advantage=0.0) if segment.trial_id in flat else segment for segment in segments]


@pytest.fixture(scope="module")
def segments(tiny_policy: Path) -> list[TrainSegment]:
    return sample(tiny_policy)


@pytest.mark.parametrize("first", [True, False])
def test_a_mini_batch_without_an_advantage_takes_no_step(tiny_policy, segments, tmp_path, first):
    """AdamW has moments by then, and would move the weights by them alone."""
    begun = Trainer(tiny_policy, open_gate(), seed=GANG_SEED)
    begun.step(segments)
    begun.save(tmp_path / "1")
    both = Trainer(tmp_path / "1", open_gate(minibatches=2), seed=GANG_SEED)
    flat = split_trials(segments, 2, hash_seed(GANG_SEED, 1))[0 if first else 1]
    given = [replace(s, advantage=0.0) if any(s is other for other in flat) else s for s in segments]
    report = both.step(given)
    assert report.refused is None
    assert report.metrics["step/updates"] == 1 and both.optimizer.steps == 2
    assert report.metrics["proof/tokens"] == sum(s.mask.sum() for s in segments)
    alone = Trainer(tmp_path / "1", open_gate(), seed=GANG_SEED)
    alone.step([segment for segment in given if segment.advantage])
    for name, value in weights(alone).items():
        torch.testing.assert_close(weights(both)[name], value, rtol=0, atol=1e-7)


@pytest.mark.skipif(not ALL, reason="takes a minute: make test-deepspeed runs it")
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_nor_do_two_processes(tiny_policy, segments, tmp_path, zero):
    """Two steps of two mini-batches, of the first step's one without an advantage: no process waits for another, and
    what comes of it is plain torch's."""
    require()
    given = half_flat(segments, GANG_SEED, first=False)
    how = {"minibatches": 2, "micro_batch_tokens": 40}
    plain = Trainer(tiny_policy, open_gate(**how), seed=GANG_SEED)
    expected = [plain.step(given).metrics for _ in range(2)]
    assert [report["step/updates"] for report in expected][0] == 1
    plain.save(tmp_path / "plain")
    put_segments(tmp_path / "segments.pt", given)
    changed = open_gate(backend="deepspeed", deepspeed=DeepSpeedSection(zero, "none", 2), **how)
    plan = {"policy": str(tiny_policy), "section": asdict(changed), "reference": None, "dtype": "float32", "steps": 2}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, "-m", "tests.trainer._gang", str(tmp_path)],
        cwd=Path(__file__).parents[2], env={**os.environ, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for report, want in zip(json.loads((tmp_path / "reports.json").read_text()), expected, strict=True):
        assert report["metrics"]["step/updates"] == want["step/updates"]
        for name in ("step/loss", "step/grad_norm", "ratio/mean"):
            assert report["metrics"][name] == pytest.approx(want[name], rel=1e-3, abs=1e-6), name
    assert furthest(tmp_path / "plain", tmp_path / "policy") <= 1e-5


@pytest.fixture(scope="module")
def rounding(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[TrainSegment]]:
    """A policy with large weights, and trials with beginnings in common, whose bfloat16 log-probs depend on what else
    is in their micro-batch."""
    folder = tmp_path_factory.mktemp("rounding") / "policy"
    make_tiny(folder, 0, CORPUS, vocabulary=300, layers=2, spread=0.2)
    draws = np.random.default_rng(0)
    made = []
    for trial in range(16):
        ids = draws.integers(9, 250, int(draws.integers(60, 200))).astype(np.int32)
        ids[:60] = np.arange(60)
        ids[60 : 60 + int(draws.integers(0, 60))] = 7
        mask = np.arange(len(ids)) >= 20
        logprobs = np.where(mask, -1.0, 0.0).astype(np.float32)
        made.append(TrainSegment(trial, ids, mask, logprobs, (1.0, -1.0, 0.5, 0.0)[trial % 4]))
    return folder, made


@pytest.mark.parametrize(
    ("minibatches", "ratio", "more"),
    [(2, "segment", {}), (4, "trial", {}), (2, "trial", {"kl": 0.1}), (4, "segment", {"entropy": 0.1})],
)
def test_pi_is_pi_old_to_the_last_bit_until_the_weights_move(rounding, minibatches, ratio, more):
    """In bfloat16 as well: packed anew, nearly half of GSPO's ratios lie outside of its clip range by rounding."""
    policy, given = rounding
    how = open_gate(minibatches=minibatches, micro_batch_tokens=1000, objective=ObjectiveSection(ratio=ratio, **more))
    how.optimizer.lr = 1e-30
    trainer = Trainer(policy, how, dtype="bfloat16", reference_dir=policy)
    report = trainer.step(given)
    exact = {name: report.metrics[name] for name in ("ratio/mean", "ratio/clipped", "ratio/k3")}
    assert exact == {"ratio/mean": 1.0, "ratio/clipped": 0.0, "ratio/k3": 0.0}
    assert report.metrics["step/updates"] == minibatches
    if more.get("kl"):
        assert report.metrics["kl/reference"] == 0.0
