"""configs/qwen3.5-35b.yaml: valid as it stands, and within the arithmetic of docs/scale.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from lego.config.load import load
from lego.config.schema import Config
from lego.units import parse_size

CARD, HOST = 80e9, 1.2e12
PARAMETERS, LARGEST_LAYER, OUTPUT_LAYER, EXPERTS = 34.66e9, 0.84e9, 0.51e9, 32.2e9
LAYERS, WIDTH, GPUS = 40, 2048, 8
LAYER_AGAIN = 0.69e6 * 1.5
"""Bytes a token while one layer with linear attention is computed again and differentiated."""


@pytest.fixture(scope="module")
def config() -> Config:
    return load(Path(__file__).parents[2] / "configs" / "qwen3.5-35b.yaml", []).config


def test_the_published_hyperparameters_are_there(config: Config) -> None:
    assert (config.rollout.tasks_per_round, config.rollout.samples_per_task, config.loop.rounds) == (64, 8, 126)
    assert (config.rollout.temperature, config.rollout.max_turns, config.eval.temperature) == (1.0, 200, 0.7)
    objective = config.train.objective
    assert (objective.name, objective.kl, config.train.optimizer.lr) == ("gspo", 0.001, 1e-6)
    assert config.engine.routing and config.train.moe.replay


def test_a_step_fits_a_gpu(config: Config) -> None:
    train = config.train
    assert (train.deepspeed.zero, train.deepspeed.offload, train.deepspeed.processes) == (3, "all", GPUS)
    assert train.checkpoint_layers
    fixed = 4 * (1e9 + LARGEST_LAYER) + 4 * (LARGEST_LAYER + 0.5e9) + 6 * OUTPUT_LAYER + 3e9
    fixed += 2 * (PARAMETERS - EXPERTS - 2 * OUTPUT_LAYER)
    longest = max(config.policy.context, train.micro_batch_tokens)
    assert fixed + longest * (LAYERS * WIDTH * 4 + LAYER_AGAIN) < 0.9 * CARD
    assert PARAMETERS * 4 * 6 + PARAMETERS * 8 < HOST  # divided, and the moments once more while they are written


def test_sampling_fits_a_gpu(config: Config) -> None:
    engine = config.engine
    assert engine.tensor_parallel == GPUS
    cache = parse_size(engine.cache)
    assert PARAMETERS * 2 / GPUS + cache < 0.8 * CARD
    attended, state = 10 * 2 * 256 * 2, 30 * (32 // GPUS) * 128 * 128 * 4
    assert engine.max_concurrent * (config.policy.context * attended + state) < cache
