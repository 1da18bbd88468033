from dataclasses import replace

import numpy as np
import pytest
import torch

from lego.config.schema import OptimizerSection, SftSection
from lego.errors import TrainerError
from lego.metrics import METRICS
from lego.trainer.sft import run_sft
from lego.trainer.step import Trainer
from tests.trainer._sampled import sample, section, weights


@pytest.fixture(scope="module")
def demonstrations(tiny_policy):
    return [
        replace(s, logprobs=np.zeros_like(s.logprobs), sampler="script", advantage=0.0)
        for s in sample(tiny_policy, trials=6)
    ]


def plan(**changes):
    settings = {"epochs": 8, "batch_trials": 4, "optimizer": OptimizerSection(lr=3e-3, warmup=2)} | changes
    return SftSection(**settings)


def test_demonstrations_are_learnt(tiny_policy, demonstrations):
    trainer = Trainer(tiny_policy, section())
    seen = []
    report = run_sft(trainer, demonstrations, plan(), seen.append)
    assert report.losses[-1] < 0.8 * report.losses[0]
    assert [p.step for p in seen] == list(range(1, 17)) and {p.steps for p in seen} == {16}
    assert set(report.metrics) <= set(METRICS)
    assert trainer.optimizer.steps == 0  # the optimizer of reinforcement learning starts fresh


def test_the_loss_is_the_mean_over_owned_tokens(tiny_policy, demonstrations):
    trainer = Trainer(tiny_policy, section(micro_batch_tokens=30))
    scored = trainer.score(demonstrations)
    owned = np.concatenate([row[s.mask] for row, s in zip(scored, demonstrations, strict=True)])
    report = run_sft(trainer, demonstrations, plan(epochs=1, batch_trials=99))
    assert report.losses == [pytest.approx(-owned.mean(), rel=1e-5)]


def test_masked_ids_are_not_taught(tiny_policy, demonstrations):
    """Other rendered ids after the last owned one change nothing."""
    tails = [replace(s, ids=np.concatenate([s.ids[:-1], [9]]).astype(np.int32)) for s in demonstrations]
    taught = []
    for given in (demonstrations, tails):
        trainer = Trainer(tiny_policy, section())
        run_sft(trainer, given, plan(epochs=1))
        taught.append(weights(trainer))
    assert all(torch.equal(taught[0][name], taught[1][name]) for name in taught[0])


def test_same_seed_same_policy_other_seed_other_order(tiny_policy, demonstrations):
    results = []
    for seed in (1, 1, 2):
        trainer = Trainer(tiny_policy, section(), seed=seed)
        run_sft(trainer, demonstrations, plan(epochs=2))
        results.append(weights(trainer)["model.embed_tokens.weight"])
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


def test_several_segments_of_one_trial_stay_together(tiny_policy, demonstrations):
    twice = [replace(s, trial_id=i // 2) for i, s in enumerate(demonstrations)]
    steps = []
    run_sft(Trainer(tiny_policy, section()), twice, plan(epochs=1, batch_trials=1), steps.append)
    assert len(steps) == 3


def test_nothing_to_learn_from_is_said(tiny_policy):
    with pytest.raises(TrainerError, match="nothing to learn from"):
        run_sft(Trainer(tiny_policy, section()), [], plan())
