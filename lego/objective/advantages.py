"""Advantages of a group of trials, and what each segment of a trial weighs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lego.errors import ObjectiveError

STD_EPSILON = 1e-4
"""Added to a group's standard deviation before dividing by it; the value TRL's GRPOTrainer uses."""

Baseline = Literal["standardised", "centred", "leave_one_out"]
Weighting = Literal["trial", "token", "constant"]
SegmentWeight = Literal["tokens", "equal"]


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


def group_advantages(rewards: Sequence[float | None], baseline: Baseline) -> GroupAdvantages:
    """What each reward is above what was to be expected of it.

    rewards: one a member of the group (same round, task and harness); None = no verdict, which enters no statistic.
    baseline: "standardised": less the group's mean, over its standard deviation (ddof 1) + 1e-4; "centred": less the
    mean; "leave_one_out": less the mean of the other members.
    Raises ObjectiveError on a reward that is not finite.
    Source: Shao et al. 2024, arXiv:2402.03300, section 4.1.2, ddof and epsilon as TRL's GRPOTrainer; centred: Liu et
    al. 2025, arXiv:2503.20783; leave_one_out: Kool et al. 2019, in Ahmadian et al. 2024, arXiv:2402.14740, eq. 7.
    """
    graded = [float(reward) for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in graded):
        raise ObjectiveError(f"a group has a reward that is not finite: {graded}")
    if len(graded) < 2:
        return GroupAdvantages((None,) * len(rewards), "skipped", graded[0] if graded else 0.0, 0.0)
    if min(graded) == max(graded):
        zeros = tuple(None if reward is None else 0.0 for reward in rewards)
        return GroupAdvantages(zeros, "flat", graded[0], 0.0)
    mean, spread, n = float(np.mean(graded)), float(np.std(graded, ddof=1)), len(graded)
    scales = {"standardised": spread + STD_EPSILON, "centred": 1.0, "leave_one_out": (n - 1) / n}
    values = tuple(None if reward is None else (float(reward) - mean) / scales[baseline] for reward in rewards)
    return GroupAdvantages(values, "ok", mean, spread)


def segment_weights(owned: Sequence[int], rule: SegmentWeight = "tokens") -> list[float]:
    """What each of the kept segments of ONE trial weighs; they add up to 1, however many its harness made of it.

    owned: sampled tokens that each kept segment owns, every one > 0.
    "tokens": n_segment / n_trial, so that at ratio 1 a trial's gradient does not depend on how it was cut
    (docs/objective.md); "equal": each the same, so that a short answer after a compaction counts as much as what went
    before it.
    """
    if any(tokens < 1 for tokens in owned):
        raise ObjectiveError(f"a segment owns no token: {list(owned)}")
    if rule == "equal":
        return [1.0 / len(owned)] * len(owned)
    total = sum(owned)
    return [tokens / total for tokens in owned]


def trial_scales(
    owned: Mapping[int, int], weighting: Weighting, longest: int, counts: Mapping[int, float] | None = None
) -> dict[int, float]:
    """What each trial of one optimizer step weighs, to multiply its segments' shares by.

    owned: trial -> sampled tokens of its kept segments, > 0.  longest: the most a trial may sample, > 0.
    counts: trial -> what it counts for, > 0, in what follows as so many trials; None: each for 1.
    "trial": every trial 1 / N, N being their number; "token": n_trial / (all tokens), so every token weighs the same;
    "constant": n_trial / (N x longest), so a token weighs the same in every step, however long the others are.
    Source: trial: Shao et al. 2024, arXiv:2402.03300, eq. 3; token: Yu et al. 2025, arXiv:2503.14476, eq. 8;
    constant: Liu et al. 2025, arXiv:2503.20783.
    """
    counted = dict.fromkeys(owned, 1.0) if counts is None else {trial: counts[trial] for trial in owned}
    tokens = {trial: counted[trial] * n for trial, n in owned.items()}
    n, total = sum(counted.values()), sum(tokens.values())
    if weighting == "trial":
        return {trial: count / n for trial, count in counted.items()}
    if weighting == "token":
        return {trial: own / total for trial, own in tokens.items()}
    if longest < 1:
        raise ObjectiveError(f"the longest trial samples {longest} tokens")
    return {trial: own / (n * longest) for trial, own in tokens.items()}
