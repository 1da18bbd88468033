"""Ours against TRL's GRPOTrainer on the same log-probs: the same loss, the same gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lego.config.schema import ObjectiveSection
from lego.objective.advantages import trial_scales
from lego.objective.losses import reference_kl
from lego.objective.recipes import recipe
from tests.conftest import missing

TRIALS, PROMPT, TOKENS = 6, 3, 9
LONGEST = 16


@pytest.fixture(scope="module")
def trl(tiny_policy, tmp_path_factory):
    """A GRPOTrainer that never generates: only its loss is asked for."""
    try:
        import trl
        from datasets import Dataset
    except ImportError as error:
        missing("trl", str(error))
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def make(loss_type, level, low, high, beta):
        settings = trl.GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("trl")), use_cpu=True, bf16=False, report_to=[], beta=beta,
            per_device_train_batch_size=TRIALS, num_generations=TRIALS, epsilon=low, epsilon_high=high,
            loss_type=loss_type, importance_sampling_level=level, max_completion_length=LONGEST,
            gradient_checkpointing=False, use_bias_correction_kl=False,
        )  # fmt: skip
        trainer = trl.GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(tiny_policy),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * TRIALS}),
            processing_class=AutoTokenizer.from_pretrained(tiny_policy),
        )
        trainer.current_gradient_accumulation_steps = 1
        return trainer

    return make


def batch(seed):
    """Log-probs, masks and advantages of trials of unequal lengths; ratios on both sides of every clip."""
    rng = np.random.default_rng(seed)
    old = -rng.exponential(1.0, (TRIALS, TOKENS))
    logp = old + rng.normal(0, 0.4, old.shape) + rng.normal(0, 2e-3, (TRIALS, 1))
    mask = rng.random(old.shape) < 0.6
    mask[:, 0] = True
    ref = logp + rng.normal(0, 0.3, old.shape)
    return [torch.from_numpy(value) for value in (logp, old, mask, rng.normal(0, 1, TRIALS), ref)]


def theirs(trainer, logp, old, mask, advantage, ref):
    logp = logp.clone().requires_grad_()
    ones = torch.ones(TRIALS, PROMPT, dtype=torch.long)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    whole = torch.ones_like(mask, dtype=torch.long)
    inputs = {
        "prompt_ids": ones, "prompt_mask": ones, "completion_ids": whole, "completion_mask": whole,
        "tool_mask": mask.long(), "old_per_token_logps": old, "ref_per_token_logps": ref, "advantages": advantage,
        "num_items_in_batch": mask.sum(),
    }  # fmt: skip
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), logp.grad.numpy()


def ours(section, logp, old, mask, advantage, ref):
    chosen = recipe(section)
    logp = logp.clone().requires_grad_()
    owned = {trial: int(row.sum()) for trial, row in enumerate(mask)}
    weight = torch.tensor(list(trial_scales(owned, chosen.weighting, LONGEST).values()), dtype=torch.float64)
    loss = chosen.loss(logp, old, mask, advantage, weight, chosen.clip).loss
    if section.kl:
        loss = loss + section.kl * reference_kl(logp, ref, mask, weight).loss
    loss.backward()
    return loss.item(), logp.grad.numpy()


@pytest.mark.parametrize(
    ("name", "loss_type", "level", "low", "high", "kl"),
    [
        ("grpo", "grpo", "token", 0.2, 0.2, 0.0),
        ("grpo", "grpo", "token", 0.2, 0.2, 0.1),
        ("gspo", "grpo", "sequence", 3e-4, 4e-4, 0.0),
        ("dr_grpo", "dr_grpo", "token", 0.2, 0.2, 0.0),
        ("dapo", "dapo", "token", 0.2, 0.28, 0.0),
        ("cispo", "cispo", "token", 0.2, 5.0, 0.0),
    ],
)
def test_the_same_loss_and_gradient(trl, name, loss_type, level, low, high, kl):
    trainer = trl(loss_type, level, low, high, kl)
    for seed in range(5):
        grids = batch(seed)
        (their_loss, their_gradient), (our_loss, our_gradient) = (
            theirs(trainer, *grids),
            ours(ObjectiveSection(name, kl=kl), *grids),
        )
        assert our_loss == pytest.approx(their_loss, rel=1e-5)
        np.testing.assert_allclose(our_gradient, their_gradient, rtol=1e-5, atol=1e-9)
