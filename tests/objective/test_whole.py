"""Each objective by its name, from rewards to gradient, against one written in NumPy float64 from the papers alone.

Trials were cut into several segments, engine and trainer differ, and a correction is on: nothing here is called by the
reference that is called by the objective.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lego.config.schema import CorrectionSection, ObjectiveSection
from lego.objective.advantages import group_advantages, segment_weights, trial_scales
from lego.objective.correction import correct
from lego.objective.losses import reference_kl
from lego.objective.recipes import RECIPES, recipe

LONGEST = 40
KL = 0.05
CORRECTION = CorrectionSection(token_tis=1.3, geometric=[0.8, 1.25])
CLIPS = {"gspo": (3e-4, 4e-4), "cispo": (1.0, 4.0), "dapo": (0.2, 0.28)}


def from_the_papers(name, rewards, segments):
    """(loss, gradient by segment). rewards: group -> trial -> reward; segments: dicts of one row each."""
    advantage = {}
    for group in rewards.values():
        given_ = np.array(list(group.values()))
        for trial, reward in group.items():
            above = reward - given_.mean()
            if name in ("gspo", "grpo", "dapo", "cispo"):
                above /= given_.std(ddof=1) + 1e-4
            if name == "rloo":
                above = reward - (given_.sum() - reward) / (len(given_) - 1)
            advantage[trial] = above
    tokens = Counter()
    for segment in segments:
        tokens[segment["trial"]] += int(segment["mask"].sum())
    low, high = CLIPS.get(name, (0.2, 0.2))
    loss, gradients = 0.0, []
    for segment in segments:
        owned, trial = segment["mask"], segment["trial"]
        a = advantage[trial]
        # What one token of this trial weighs.
        if name in ("dapo", "cispo"):
            each = 1 / sum(tokens.values())
        elif name in ("dr_grpo", "rloo"):
            each = 1 / (len(tokens) * LONGEST)
        else:
            each = 1 / (len(tokens) * tokens[trial])
        ratio = np.exp(segment["logp"] - segment["old"])
        rho = np.exp(segment["old"] - segment["engine"])
        fixed = np.minimum(rho, 1.3) * (0.8 <= np.exp(np.log(rho[owned]).mean()) <= 1.25)
        pull = np.zeros_like(ratio)
        for t in np.flatnonzero(owned):
            r = np.exp((segment["logp"] - segment["old"])[owned].mean()) if name == "gspo" else ratio[t]
            clipped = min(max(r, 1 - low), 1 + high)
            if name in ("rloo", "reinforce"):
                gain, slope = a * segment["logp"][t], a
            elif name == "cispo":
                gain, slope = clipped * a * segment["logp"][t], clipped * a
            else:
                gain = min(r * a, clipped * a)
                slope = r * a if r * a <= clipped * a else 0.0
            loss -= each * fixed[t] * gain
            pull[t] -= each * fixed[t] * slope
            away = segment["reference"][t] - segment["logp"][t]
            loss += KL * each * (np.exp(away) - 1 - away)
            pull[t] += KL * each * (1 - np.exp(away))
        gradients.append(pull)
    return loss, gradients


def ours(name, rewards, segments):
    chosen = recipe(ObjectiveSection(name))
    advantage = {}
    for group in rewards.values():
        advantage |= dict(zip(group, group_advantages(list(group.values()), chosen.advantage).values, strict=True))
    owned = {trial: [int(s["mask"].sum()) for s in segments if s["trial"] == trial] for trial in advantage}
    shares = {trial: iter(segment_weights(counts)) for trial, counts in owned.items()}
    scales = trial_scales({trial: sum(counts) for trial, counts in owned.items()}, chosen.weighting, LONGEST)
    weight = torch.tensor([next(shares[s["trial"]]) * scales[s["trial"]] for s in segments], dtype=torch.float64)
    pulls = torch.tensor([advantage[s["trial"]] for s in segments], dtype=torch.float64)
    grids = {key: torch.from_numpy(np.stack([s[key] for s in segments])) for key in segments[0] if key != "trial"}
    logp = grids["logp"].requires_grad_()
    factor, _ = correct(grids["old"], grids["engine"], grids["mask"], CORRECTION)
    loss = chosen.loss(logp, grids["old"], grids["mask"], pulls, weight, chosen.clip, factor).loss
    loss = loss + KL * reference_kl(logp, grids["reference"], grids["mask"], weight).loss
    loss.backward()
    return loss.item(), logp.grad.numpy()


def drawn(seed, scale):
    rng = np.random.default_rng(seed)
    rewards, segments, trial = {}, [], 0
    for group in range(2):
        size = int(rng.integers(2, 5))
        rewards[group] = {}
        for _ in range(size):
            rewards[group][trial] = float(rng.choice([0.0, 0.3, 1.0]))
            for _ in range(int(rng.integers(1, 4))):
                old = -rng.exponential(1.0, 6)
                mask = rng.random(6) < 0.6
                mask[rng.integers(6)] = True
                segments.append({
                    "trial": trial, "old": old, "logp": old + rng.normal(0, scale, 6), "mask": mask,
                    "engine": old + rng.normal(0, 0.2, 6), "reference": old + rng.normal(0, 0.3, 6),
                })  # fmt: skip
            trial += 1
    return rewards, segments


@pytest.mark.parametrize("name", RECIPES)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0.0, 0.02, 0.4]))
@settings(max_examples=25, deadline=None)
def test_from_rewards_to_gradient(name, seed, scale):
    rewards, segments = drawn(seed, scale)
    assume(all(len(set(group.values())) > 1 for group in rewards.values()))
    low, high = CLIPS.get(name, (0.2, 0.2))
    for s in segments:  # at an edge of the clip the gradient is either of two
        delta = (s["logp"] - s["old"])[s["mask"]]
        ratios = np.exp(delta.mean(keepdims=True) if name == "gspo" else delta)
        assume(np.abs(ratios[:, None] - [1 - low, 1 + high]).min() > 1e-6)
    (want, pulls), (got, gradient) = from_the_papers(name, rewards, segments), ours(name, rewards, segments)
    assert got == pytest.approx(want, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradient, np.stack(pulls), rtol=1e-9, atol=1e-12)
