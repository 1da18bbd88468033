from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import TrainerError
from lego.trainer.batch import TrainSegment, check, check_weights, context, pack, split_trials


def segment(n=5, owned=(2, 3), trial=1, **changes):
    mask = np.zeros(n, bool)
    mask[list(owned)] = True
    made = TrainSegment(trial, np.arange(n, dtype=np.int32), mask, np.where(mask, -1.0, 0.0).astype(np.float32))
    return replace(made, **changes)


def test_a_good_segment_passes():
    check([segment()], 5)


BAD = {
    "owns no sampled token": segment(owned=()),
    "first id": segment(owned=(0, 2)),
    "outside the vocabulary": segment(ids=np.full(5, 99, np.int32)),
    "not finite": segment(logprobs=np.full(5, np.nan, np.float32)),
    "above 0": segment(logprobs=np.full(5, 0.5, np.float32)),
    "ids, ": segment(ids=np.arange(4, dtype=np.int32)),
    "not bool": segment(mask=np.array([0, 0, 1, 1, 0])),
    "advantage nan": segment(advantage=float("nan")),
    "weight 0": segment(weight=0.0),
    "scripted": segment(sampler="script"),
}


@pytest.mark.parametrize("message", BAD)
def test_a_broken_segment_is_named(message):
    with pytest.raises(TrainerError, match=message) as caught:
        check([segment(trial=7), BAD[message]], 50)
    assert "segment 1 of trial 1" in str(caught.value)


def test_a_trial_may_not_weigh_more_than_one():
    check_weights([segment(weight=0.25), segment(weight=0.75), segment(trial=2)])
    with pytest.raises(TrainerError, match="trial 1 weigh 1.5"):
        check_weights([segment(weight=0.75), segment(weight=0.75)])


sizes = st.lists(st.tuples(st.integers(2, 40), st.integers(0, 5)), min_size=1, max_size=20)


@pytest.mark.parametrize("layout", ["forest", "packed", "rows"])
@given(sizes, st.integers(4, 120))
def test_packing_loses_nothing_and_keeps_to_the_budget(layout, shapes, budget):
    segments = [segment(n + tail, owned=(n - 1,), trial=i) for i, (n, tail) in enumerate(shapes)]
    batches = pack(segments, budget, layout)
    assert sorted(i for batch in batches for i in batch.index) == list(range(len(segments)))
    for batch in batches:
        assert len(batch.index) == 1 or batch.ids.numel() <= budget
        assert batch.wanted.tolist() == [int(segments[i].ids[segments[i].mask][0]) for i in batch.index]
        before = [int(segments[i].ids[len(context(segments[i])) - 1]) for i in batch.index]
        assert batch.ids.flatten()[batch.states].tolist() == before
        assert batch.mask.sum(1).tolist() == [1] * len(batch.index)


def test_what_nothing_owned_depends_on_is_not_run_over():
    (batch,) = pack([segment(9, owned=(2, 4))], 100)
    assert batch.ids.tolist() == [[0, 1, 2, 3]]
    assert batch.wanted.tolist() == [2, 4]
    assert batch.logprobs.tolist() == [[-1.0, -1.0]]


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 3))
def test_mini_batches_hold_whole_trials_evenly(trials, parts, seed):
    segments = [segment(trial=trial) for trial in trials]
    split = split_trials(segments, parts, seed)
    held = [{s.trial_id for s in part} for part in split]
    assert sum(len(part) for part in split) == len(segments)
    assert sum(len(part) for part in held) == len(set(trials))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    assert [[s.trial_id for s in part] for part in split_trials(segments, parts, seed)] == [
        [s.trial_id for s in part] for part in split
    ]


@pytest.mark.parametrize("layout", ["forest", "packed", "rows"])
@given(st.lists(st.integers(0, 99), min_size=2, max_size=9, unique=True), st.randoms())
def test_the_order_segments_come_in_decides_nothing(layout, firsts, random):
    """Also among those of one length."""
    segments = [segment(9, owned=(8,), trial=i, ids=np.full(9, first, np.int32)) for i, first in enumerate(firsts)]
    mixed = random.sample(segments, len(segments))
    told = [[batch.ids.tolist() for batch in pack(given, 20, layout)] for given in (segments, mixed)]
    assert told[0] == told[1]
