"""The corrections against loops written from their definitions."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.config.schema import CorrectionSection
from lego.errors import ObjectiveError
from lego.objective.correction import correct

OFF = {"token_tis": 0.0}
CASES = {
    "none": OFF,
    "token_tis": {"token_tis": 1.3},
    "sequence_tis": OFF | {"sequence_tis": 1.5},
    "icepop": OFF | {"icepop": [0.7, 1.4]},
    "sequence_mask": {"token_tis": 2.0, "sequence_mask": 1.2},
    "geometric": {"token_tis": 2.0, "geometric": [0.9, 1.1]},
    "veto": {"token_tis": 2.0, "veto": 0.6},
}


def reference(section, old, engine, mask):
    """(factors, capped, vetoed), one token after the other."""
    factors, capped, vetoed = np.ones_like(old), 0, 0
    for i in range(len(old)):
        owned = [t for t in range(old.shape[1]) if mask[i, t]]
        rho = {t: math.exp(old[i, t] - engine[i, t]) for t in owned}
        product = math.prod(rho.values())
        out = bool(section.sequence_mask and product > section.sequence_mask)
        if section.geometric:
            low, high = section.geometric
            out |= not low <= product ** (1 / len(owned)) <= high
        veto = bool(section.veto and min(rho.values()) < section.veto)
        vetoed += veto
        for t in owned:
            cut = False
            if section.token_tis:
                factor, cut = min(rho[t], section.token_tis), rho[t] > section.token_tis
            elif section.sequence_tis:
                factor, cut = min(product, section.sequence_tis), product > section.sequence_tis
            elif section.icepop:
                cut = not section.icepop[0] <= rho[t] <= section.icepop[1]
                factor = 0.0 if cut else rho[t]
            else:
                factor = 1.0
            capped += cut
            factors[i, t] = 0.0 if out or veto else factor
    return factors, capped, vetoed


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=40, deadline=None)
def test_factors_are_those_of_the_definition(name, seed):
    section = CorrectionSection(**CASES[name])
    rng = np.random.default_rng(seed)
    engine = -rng.exponential(1.0, (5, 6))
    old = engine + rng.normal(0, 0.25, engine.shape)
    mask = rng.random(engine.shape) < 0.7
    mask[:, 0] = True
    wanted, capped, vetoed = reference(section, old, engine, mask)
    given_old = torch.from_numpy(np.where(mask, old, np.nan)).requires_grad_()
    factor, metrics = correct(given_old, torch.from_numpy(engine), torch.from_numpy(mask), section)
    np.testing.assert_allclose(factor.numpy(), wanted, rtol=1e-9)
    assert not factor.requires_grad
    assert metrics["correction/capped"].total == capped
    assert metrics["correction/vetoed"].total == vetoed
    assert metrics["correction/masked"].total == (wanted[mask] == 0).sum()
    assert metrics["correction/weight"].value == pytest.approx(wanted[mask].mean())


@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_masks_hold_where_nothing_is_weighed(name, seed):
    """As beside a loss whose own ratio is to mu: every factor is 1, or 0 in a segment that is left out."""
    section = CorrectionSection(**CASES[name])
    rng = np.random.default_rng(seed)
    engine = -rng.exponential(1.0, (5, 6))
    old = engine + rng.normal(0, 0.25, engine.shape)
    mask = rng.random(engine.shape) < 0.7
    mask[:, 0] = True
    alone = replace(section, token_tis=0.0, sequence_tis=0.0, icepop=[])
    wanted, _, vetoed = reference(alone, old, engine, mask)
    factor, metrics = correct(*map(torch.from_numpy, (old, engine, mask)), section, weighs=False)
    np.testing.assert_array_equal(factor.numpy(), wanted)
    assert set(factor.unique().tolist()) <= {0.0, 1.0}
    assert metrics["correction/capped"].total == 0
    assert metrics["correction/vetoed"].total == vetoed


@pytest.mark.parametrize("name", CASES)
def test_where_both_agree_nothing_is_corrected(name):
    logp, mask = -torch.rand(3, 4), torch.tensor([[True, True, False, False]] * 3)
    factor, metrics = correct(logp, logp, mask, CorrectionSection(**CASES[name]))
    assert torch.equal(factor, torch.ones_like(factor))
    assert metrics["correction/masked"].total == metrics["correction/capped"].total == 0


def test_bounds_that_are_none_are_refused():
    logp, mask = torch.zeros(1, 2), torch.ones(1, 2, dtype=torch.bool)
    for bounds in ([0.5], [1.1, 2.0], [-1.0, 2.0]):
        with pytest.raises(ObjectiveError, match="geometric"):
            correct(logp, logp, mask, CorrectionSection(geometric=bounds))
