"""Advantages of a group of trials, and what each segment of a trial weighs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lego.errors import ObjectiveError

STD_EPSILON = 1e-4
"""Added to a group's standard deviation before dividing by it; the value TRL's GRPOTrainer uses."""


@dataclass(frozen=True)
class GroupAdvantages:
    """What one group teaches.

    values: one a member, in the order of the rewards; None where the member was not graded or the group is skipped.
    state: "ok"; "flat" when every graded reward is the same (each value is exactly 0, nothing to learn);
    "skipped" when fewer than two members were graded.
    mean, std: of the graded rewards (std with ddof 1; 0 when skipped).
    """

    values: tuple[float | None, ...]
    state: Literal["ok", "flat", "skipped"]
    mean: float
    std: float


def group_advantages(rewards: Sequence[float | None], std: bool) -> GroupAdvantages:
    """Reward less the group's mean and, if `std`, over the group's standard deviation (ddof 1) + 1e-4.

    rewards: one a member of the group (same round, task and harness); None = no verdict, which enters no statistic.
    Raises ObjectiveError on a reward that is not finite.
    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2; ddof and epsilon as TRL's GRPOTrainer.
    """
    graded = [float(reward) for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in graded):
        raise ObjectiveError(f"a group has a reward that is not finite: {graded}")
    if len(graded) < 2:
        return GroupAdvantages((None,) * len(rewards), "skipped", graded[0] if graded else 0.0, 0.0)
    if min(graded) == max(graded):
        zeros = tuple(None if reward is None else 0.0 for reward in rewards)
        return GroupAdvantages(zeros, "flat", graded[0], 0.0)
    mean = float(np.mean(graded))
    spread = float(np.std(graded, ddof=1))
    scale = spread + STD_EPSILON if std else 1.0
    values = tuple(None if reward is None else (float(reward) - mean) / scale for reward in rewards)
    return GroupAdvantages(values, "ok", mean, spread)


def segment_weights(owned: Sequence[int]) -> list[float]:
    """n_segment / n_trial for the kept segments of ONE trial; they add up to 1.

    owned: sampled tokens that each kept segment owns, every one > 0. With these weights a trial pulls as hard as any
    other at ratio 1, however many segments its harness made of it (docs/objective.md).
    """
    if any(tokens < 1 for tokens in owned):
        raise ObjectiveError(f"a segment owns no token: {list(owned)}")
    total = sum(owned)
    return [tokens / total for tokens in owned]
