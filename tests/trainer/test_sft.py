from dataclasses import replace

import numpy as np
import pytest
import torch

from lego.config.schema import OptimizerSection, SftSection
from lego.errors import TrainerError
from lego.metrics import METRICS
from lego.trainer.sft import run_sft, split
from lego.trainer.step import Trainer
from tests.trainer._sampled import sample, section, weights
from tests.trainer._teaching import teach_until_killed


@pytest.fixture(scope="module")
def demonstrations(tiny_policy):
    return [
        replace(s, logprobs=np.zeros_like(s.logprobs), sampler="script", advantage=0.0)
        for s in sample(tiny_policy, trials=6)
    ]


def plan(**changes):
    settings = {
        "epochs": 8,
        "batch_trials": 4,
        "held_out": 0.0,
        "optimizer": OptimizerSection(lr=3e-3, warmup=2),
    } | changes
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


def test_what_is_held_out_measures_and_is_not_taught(tiny_policy, demonstrations):
    taught, held = split([s.trial_id for s in demonstrations], 0.34, 0)
    assert len(held) == 2 and sorted([*taught, *held]) == [s.trial_id for s in demonstrations]
    trainer = Trainer(tiny_policy, section())
    report = run_sft(trainer, demonstrations, plan(epochs=3, held_out=0.34))
    kept_out = [s for s in demonstrations if s.trial_id in held]
    owned = np.concatenate([row[s.mask] for row, s in zip(trainer.score(kept_out), kept_out, strict=True)])
    assert report.held_out[report.best - 1] == pytest.approx(-owned.mean(), rel=1e-5)
    other = [replace(s, ids=s.ids[::-1].copy()) if s.trial_id in held else s for s in demonstrations]
    again = Trainer(tiny_policy, section())
    assert run_sft(again, other, plan(epochs=3, held_out=0.34)).losses == report.losses


def test_the_best_epoch_is_kept_and_patience_ends_the_teaching(tiny_policy, demonstrations):
    """At this rate every epoch is worse than the one before it, sooner or later."""
    trainer = Trainer(tiny_policy, section())
    hasty = plan(epochs=12, held_out=0.34, patience=2, optimizer=OptimizerSection(lr=0.03))
    report = run_sft(trainer, demonstrations, hasty)
    assert report.best == int(np.argmin(report.held_out)) + 1 == report.metrics["sft/epoch"]
    assert len(report.losses) == report.best + 2 < 12
    upto = Trainer(tiny_policy, section())
    run_sft(upto, demonstrations, replace(hasty, patience=1))
    assert all(torch.equal(weights(trainer)[name], value) for name, value in weights(upto).items())


def test_a_killed_teaching_goes_on_to_the_same_weights(tiny_policy, demonstrations, tmp_path):
    settings = plan(epochs=4, held_out=0.34, final_lr=0.1)
    whole = Trainer(tiny_policy, section())
    wanted = run_sft(whole, demonstrations, settings)

    teach_until_killed(Trainer(tiny_policy, section()), demonstrations, settings, tmp_path / "kept")
    steps = []
    resumed = Trainer(tiny_policy, section())
    report = run_sft(resumed, demonstrations, settings, steps.append, tmp_path / "kept")
    assert steps[0].step > 1
    assert (report.losses, report.held_out) == (wanted.losses, wanted.held_out)
    assert all(torch.equal(weights(resumed)[name], value) for name, value in weights(whole).items())


def test_what_another_teaching_left_is_not_taken_up(tiny_policy, demonstrations, tmp_path):
    run_sft(Trainer(tiny_policy, section()), demonstrations, plan(epochs=1), keep=tmp_path)
    steps = []
    run_sft(Trainer(tiny_policy, section()), demonstrations[:4], plan(epochs=1), steps.append, tmp_path)
    assert steps[0].step == 1


def test_nor_what_was_taught_to_another_policy(tiny_policy, demonstrations, tmp_path):
    """A round may have been trained on between a kill and the next `lego sft`: its step must not be lost."""
    first = Trainer(tiny_policy, section())
    run_sft(first, demonstrations, plan(epochs=1), keep=tmp_path / "kept")
    first.save(tmp_path / "1", optimizer=False)
    steps = []
    run_sft(Trainer(tmp_path / "1", section()), demonstrations, plan(epochs=1), steps.append, tmp_path / "kept")
    assert steps[0].step == 1


def test_the_learning_rate_falls_in_a_line(tiny_policy, demonstrations):
    rates = []
    wish = plan(epochs=2, batch_trials=3, final_lr=0.2, optimizer=OptimizerSection(lr=1e-3))
    run_sft(Trainer(tiny_policy, section()), demonstrations, wish, lambda p: rates.append(p.metrics["step/lr"]))
    assert rates == pytest.approx([1e-3, 0.8e-3, 0.6e-3, 0.4e-3])
