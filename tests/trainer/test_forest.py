"""The layout, and attention over it, against every sequence by itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lego.trainer.attention as attention
from lego.trainer.attention import Trees
from lego.trainer.forest import GRAIN, grow, order, shared

# Few ids and long stretches that repeat, so that much is shared.
sequences = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40)), min_size=1, max_size=5).map(
        lambda spans: np.repeat([i for i, _ in spans], [n for _, n in spans]).astype(np.int32)
    ),
    min_size=1,
    max_size=8,
)


def plant(given_, share=True):
    ordered = [given_[i] for i in order(given_)]
    common = [0] + [shared(a, b) if share else 0 for a, b in zip(ordered, ordered[1:], strict=False)]
    return ordered, grow(ordered, common)


def ancestors(forest):
    """[n, n] bool, from the paths alone: who stands before whom in some sequence."""
    n = len(forest.ids)
    sees = np.zeros((n, n), bool)
    for path in forest.paths:
        for at, place in enumerate(path):
            sees[place, path[: at + 1]] = True
    return sees


def by_runs(forest):
    n = len(forest.ids)
    sees = np.zeros((n, n), bool)
    for run in forest.runs:
        sees[run.start : run.end, run.start : run.end] = np.tri(run.end - run.start, dtype=bool)
        sees[run.end : run.reach, run.start : run.end] = True
    return sees


@given(sequences)
def test_every_sequence_is_there_once_and_sees_itself_alone(given_):
    ordered, forest = plant(given_)
    for sequence, path in zip(ordered, forest.paths, strict=True):
        np.testing.assert_array_equal(forest.ids[path], sequence)
        np.testing.assert_array_equal(forest.depth[path], np.arange(len(sequence)))
    assert set(np.concatenate(forest.paths).tolist()) == set(range(len(forest.ids)))
    assert [run.start for run in forest.runs[1:]] == [run.end for run in forest.runs[:-1]]
    np.testing.assert_array_equal(by_runs(forest), ancestors(forest))


@given(sequences)
def test_no_more_is_computed_than_is_new(given_):
    ordered, forest = plant(given_)
    unique = {tuple(sequence[: at + 1]) for sequence in ordered for at in range(len(sequence))}
    assert len(unique) <= len(forest.ids) <= len(unique) + (GRAIN - 1) * (len(ordered) - 1)
    _, whole = plant(given_, share=False)
    assert len(whole.ids) == sum(map(len, ordered))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)])
@given(sequences, st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_attention_over_a_forest_is_masked_attention(heads, given_, seed):
    _, forest = plant(given_)
    torch.manual_seed(seed)
    n = len(forest.ids)
    grids = [torch.randn(1, h, n, 16, requires_grad=True) for h in (heads[0], heads[1], heads[1])]
    pull = torch.randn(1, heads[0], n, 16)
    found = Trees(forest.runs, torch.device("cpu")).attend(*grids, 0.3)
    ours = torch.autograd.grad(found, grids, pull)
    plain = torch.nn.functional.scaled_dot_product_attention(
        *grids, attn_mask=torch.from_numpy(ancestors(forest)), scale=0.3, enable_gqa=True
    )
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    for a, b in zip(ours, torch.autograd.grad(plain, grids, pull), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_block_mask_of_other_devices_is_the_same_mask():
    rng = np.random.default_rng(0)
    _, forest = plant([np.repeat(rng.integers(0, 3, 6), 30).astype(np.int32) for _ in range(12)])
    mask = attention._block_mask(forest.runs, torch.device("cpu"))
    rows, columns = torch.meshgrid(*[torch.arange(len(forest.ids))] * 2, indexing="ij")
    np.testing.assert_array_equal(mask.mask_mod(0, 0, rows, columns).numpy(), ancestors(forest))


def test_half_precision_meets_in_float32():
    _, forest = plant([np.arange(80, dtype=np.int32), np.r_[np.arange(50), np.arange(30)].astype(np.int32)])
    grids = [torch.randn(1, 2, len(forest.ids), 16) for _ in range(3)]
    trees = Trees(forest.runs, torch.device("cpu"))
    full = trees.attend(*grids, 0.25)
    half = trees.attend(*[grid.bfloat16() for grid in grids], 0.25)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), full, rtol=0.05, atol=0.05)
