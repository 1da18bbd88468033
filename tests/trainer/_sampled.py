"""Trials sampled from a policy by a plain loop: the trainer is held against something it did not compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from lego.config.schema import OptimizerSection, TrainSection
from lego.trainer.batch import TrainSegment


def sample(folder: Path, *, trials: int = 4, turns: int = 2, turn: int = 6, temperature: float = 1.0, seed: int = 0):
    """Segments of `turns` sampled turns between rendered ids, with the log-probs of the sampling distribution.

    Advantages alternate +1, -0.5; lengths differ from trial to trial.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    vocabulary = model.config.vocab_size
    draws = np.random.default_rng(seed)
    torch.manual_seed(seed)
    segments = []
    for trial in range(trials):
        ids: list[int] = []
        mask: list[bool] = []
        logprobs: list[float] = []
        for _ in range(turns):
            rendered = draws.integers(0, vocabulary, size=3 + trial).tolist()
            ids += rendered
            mask += [False] * len(rendered)
            logprobs += [0.0] * len(rendered)
            for _ in range(turn):
                with torch.no_grad():
                    logits = model(torch.tensor([ids])).logits[0, -1].float() / temperature
                spread = torch.log_softmax(logits, -1)
                token = int(torch.multinomial(spread.exp(), 1))
                ids.append(token)
                mask.append(True)
                logprobs.append(float(spread[token]))
        ids.append(1)  # a rendered tail
        mask.append(False)
        logprobs.append(0.0)
        segments.append(
            TrainSegment(
                trial_id=100 + trial,
                ids=np.array(ids, dtype=np.int32),
                mask=np.array(mask),
                logprobs=np.array(logprobs, dtype=np.float32),
                advantage=(1.0, -0.5)[trial % 2],
                group="round 1",
            )
        )
    return segments


def section(**changes) -> TrainSection:
    """The default train section with a learning rate that moves a tiny policy."""
    return TrainSection(optimizer=OptimizerSection(lr=1e-3, warmup=4, betas=[0.9, 0.99]), **changes)


def weights(trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.policy.model.named_parameters()}
