"""Segments: every sampled token of a kept call is owned once, in the context it was sampled in."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.trajectory.arrays import Fate
from lego.trajectory.prompt import HistoryPolicy
from lego.trajectory.segments import Keep, segments
from lego.trajectory.tree import CallTree, rebuild
from tests.trajectory._harness import RandomHarness, run

KEEPS = st.builds(
    Keep, sampler=st.sampled_from(["policy", "policy", "script"]), auxiliary=st.booleans(), abandoned=st.booleans()
)


@pytest.mark.parametrize("family", ["tiny-chatml", "qwen3"])
@pytest.mark.parametrize("history", ["raw", "template"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_sampled_token_is_owned_once(family: str, history: HistoryPolicy, data: st.DataObject) -> None:
    harness = RandomHarness(data, family, history)
    run(harness, data.draw(st.integers(1, 8)))
    keep = data.draw(KEEPS)
    result = segments(harness.tree, keep)
    assert result.dropped == []
    owned: Counter[int] = Counter()
    for segment in result.segments:
        n = len(segment.ids)
        assert len(segment.mask) == len(segment.logprobs) == len(segment.owners) == n and segment.mask[-1]
        assert (segment.ids.dtype, segment.mask.dtype, segment.logprobs.dtype) == (np.int32, np.bool_, np.float32)
        assert np.array_equal(segment.mask, segment.owners >= 0)
        assert (segment.logprobs[~segment.mask] == 0).all()
        assert set(segment.call_ids) == set(segment.owners[segment.mask].tolist())
        for seq in segment.call_ids:
            truth = harness.truth[seq]
            at = np.flatnonzero(segment.owners == seq) - len(truth.prompt)
            assert at.min() >= 0 and at.max() < len(truth.completion)
            upto = len(truth.prompt) + int(at.max()) + 1
            assert np.array_equal(segment.ids[:upto], np.concatenate([truth.prompt, truth.completion])[:upto])
            if truth.logprobs is not None:
                assert np.array_equal(segment.logprobs[segment.owners == seq], truth.logprobs[at])
            owned[seq] += len(at)
    expected = {c.id: len(c.completion_ids) for c in harness.tree if keep.excluded(c) is None and len(c.completion_ids)}
    assert dict(owned) == expected
    left_out = sum(len(c.completion_ids) for c in harness.tree if keep.excluded(c) is not None)
    assert result.excluded.total() == left_out
    again = segments(rebuild([call.row() for call in harness.tree]), keep)
    assert [s.ids.tolist() for s in again.segments] == [s.ids.tolist() for s in result.segments]
    assert [s.owners.tolist() for s in again.segments] == [s.owners.tolist() for s in result.segments]


IDS = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), IDS, IDS, st.sampled_from(list(Fate))), min_size=1, max_size=8))
def test_any_tree_is_cut_so_that_each_token_is_owned_once(rows: list[tuple[int, list[int], list[int], Fate]]) -> None:
    """Also trees that no request of ours would make: a child may share less than its parent does."""
    tree = CallTree()
    for cut, added, completion, fate in rows:
        parents = list(tree)
        parent = parents[cut % len(parents)] if parents and cut else None
        shared = 0 if parent is None else cut % (parent.length + 1)
        # Nothing is sampled without a prompt.
        tree.add(
            parent, shared, added if shared else [0, *added], completion, [-1.0] * len(completion), "stop", fate=fate
        )
    owned: Counter[tuple[int, int]] = Counter()
    for segment in segments(tree).segments:
        for seq in segment.call_ids:
            at = np.flatnonzero(segment.owners == seq)
            assert np.array_equal(segment.ids[: at.max() + 1], tree.full_ids(tree[seq])[: at.max() + 1])
            owned.update((seq, int(i) - tree[seq].prompt_length) for i in at)
    kept = [call for call in tree if call.fate is not Fate.ABANDONED]
    assert owned == Counter((call.id, i) for call in kept for i in range(len(call.completion_ids)))


def linear(tree: CallTree, turns: int) -> None:
    parent = None
    for turn in range(turns):
        shared = 0 if parent is None else parent.length
        parent = tree.add(parent, shared, [1, 2], [3, 4 + turn], [-0.1, -0.2], "stop")


def test_a_linear_trial_is_one_segment() -> None:
    tree = CallTree()
    linear(tree, 3)
    (segment,) = segments(tree).segments
    assert segment.ids.tolist() == [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 6]
    assert segment.mask.tolist() == [False, False, True, True] * 3
    assert segment.owners.tolist() == [-1, -1, 1, 1, -1, -1, 2, 2, -1, -1, 3, 3]
    assert (segment.leaf, segment.call_ids, segment.sampled) == (3, (1, 2, 3), 6)


def test_the_first_leaf_owns_what_two_share() -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1], [2, 3], [-1.0, -1.0], "stop")
    tree.add(root, 3, [4], [5], [-1.0], "stop")
    tree.add(root, 3, [6], [7], [-1.0], "stop")
    first, second = segments(tree).segments
    assert (first.call_ids, second.call_ids) == ((1, 2), (3,))
    assert second.ids.tolist() == [1, 2, 3, 6, 7] and second.mask.tolist() == [False] * 4 + [True]


def test_a_reply_shared_in_part_is_trained_whole() -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1], [2, 3], [-1.0, -1.0], "stop")
    tree.add(root, 2, [9], [5], [-1.0], "stop")
    assert [s.call_ids for s in segments(tree).segments] == [(1,), (2,)]


def test_a_path_through_an_excluded_call_covers_only_what_it_shares() -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1], [2, 3], [-1.0, -1.0], "stop")
    gone = tree.add(root, 3, [4], [5], [-1.0], "stop", fate=Fate.ABANDONED)
    tree.add(gone, 1, [9], [7], [-1.0], "stop")
    assert [s.ids.tolist() for s in segments(tree).segments] == [[1, 2, 3], [1, 9, 7]]


def test_excluded_calls_stay_as_context() -> None:
    tree = CallTree()
    linear(tree, 3)
    tree.settle(2, Fate.ABANDONED)
    result = segments(tree)
    (segment,) = result.segments
    assert segment.call_ids == (1, 3) and result.excluded == {"abandoned": 2}
    assert len(segment.ids) == 12


@pytest.mark.parametrize("logprobs", [None, [-1.0], [-1.0, float("nan")], [-1.0, float("inf")], [-1.0, 0.5]])
def test_a_broken_segment_is_dropped_and_the_rest_lives(logprobs: list[float] | None) -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1], [2, 3], [-1.0, -1.0], "stop")
    tree.add(root, 3, [4], [5, 6], logprobs, "stop")
    tree.add(root, 3, [7], [8], [-1.0], "stop")
    tree.add(None, 0, [9], [8], [-1.0], "stop")
    result = segments(tree)
    assert [s.call_ids for s in result.segments] == [(1, 3), (4,)]
    assert len(result.dropped) == 1 and "call 2" in result.dropped[0]
    assert result.excluded == {"broken": 2}


def test_sound_tokens_of_a_dropped_segment_are_counted() -> None:
    tree = CallTree()
    root = tree.add(None, 0, [1], [2, 3], [-1.0, -1.0], "stop")
    tree.add(root, 3, [4], [5], None, "stop")
    result = segments(tree)
    assert result.segments == [] and result.excluded == {"broken": 1, "in dropped segments": 2}


def test_script_rows_are_never_policy_rows() -> None:
    tree = CallTree()
    tree.add(None, 0, [1], [2], None, "stop", sampler="script")
    assert segments(tree).segments == [] and segments(tree).excluded == {"sampled by script": 1}
    (segment,) = segments(tree, Keep(sampler="script")).segments
    assert segment.mask.tolist() == [False, True] and segment.logprobs.tolist() == [0, 0]
