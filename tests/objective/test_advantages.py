import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import ObjectiveError
from lego.objective.advantages import STD_EPSILON, group_advantages, segment_weights

rewards = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12)


def test_worked_example():
    group = group_advantages([1.0, 0.0, None, 0.0, 0.0], std=True)
    # mean .25, ddof-1 std .5
    assert group.values == pytest.approx((0.75 / 0.5001, -0.25 / 0.5001, None, -0.25 / 0.5001, -0.25 / 0.5001))
    assert (group.state, group.mean, group.std) == ("ok", 0.25, 0.5)
    assert group_advantages([1.0, 0.0, 0.0, 0.0], std=False).values == (0.75, -0.25, -0.25, -0.25)


@pytest.mark.parametrize("few", [[], [None], [0.7], [None, 1.0, None]])
def test_fewer_than_two_graded_are_skipped(few):
    group = group_advantages(few, std=True)
    assert group.state == "skipped"
    assert group.values == (None,) * len(few)


def test_equal_rewards_give_exactly_zero():
    group = group_advantages([0.1, 0.1, 0.1, None], std=True)  # their float mean is not 0.1
    assert group.state == "flat"
    assert group.values == (0.0, 0.0, 0.0, None)


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ObjectiveError, match="not finite"):
        group_advantages([1.0, float("nan")], std=True)


@given(rewards, st.booleans())
def test_against_the_definition(values, std):
    group = group_advantages(values, std)
    graded = [value for value in values if value is not None]
    if len(graded) < 2 or min(graded) == max(graded):
        assert group.state in ("skipped", "flat")
        return
    scale = statistics.stdev(graded) + STD_EPSILON if std else 1.0
    mean = statistics.fmean(graded)
    expected = [None if value is None else (value - mean) / scale for value in values]
    assert [a is None for a in group.values] == [e is None for e in expected]
    assert [a for a in group.values if a is not None] == pytest.approx(
        [e for e in expected if e is not None], rel=1e-6, abs=1e-6
    )
    assert sum(a for a in group.values if a is not None) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_weights_share_one_trial_by_tokens(owned):
    weights = segment_weights(owned)
    assert sum(weights) == pytest.approx(1.0)
    assert [w * sum(owned) for w in weights] == pytest.approx(owned)


def test_a_segment_without_tokens_has_no_weight():
    with pytest.raises(ObjectiveError, match="owns no token"):
        segment_weights([3, 0])
