import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import ObjectiveError
from lego.objective.advantages import STD_EPSILON, group_advantages, segment_weights, trial_scales

rewards = st.lists(st.one_of(st.none(), st.floats(0, 1)), max_size=12)


def test_worked_example():
    group = group_advantages([1.0, 0.0, None, 0.0, 0.0], "standardised")
    # mean .25, ddof-1 std .5
    assert group.values == pytest.approx((0.75 / 0.5001, -0.25 / 0.5001, None, -0.25 / 0.5001, -0.25 / 0.5001))
    assert (group.state, group.mean, group.std) == ("ok", 0.25, 0.5)
    assert group_advantages([1.0, 0.0, 0.0, 0.0], "centred").values == (0.75, -0.25, -0.25, -0.25)


@pytest.mark.parametrize("few", [[], [None], [0.7], [None, 1.0, None]])
def test_fewer_than_two_graded_are_skipped(few):
    group = group_advantages(few, "standardised")
    assert group.state == "skipped"
    assert group.values == (None,) * len(few)


def test_equal_rewards_give_exactly_zero():
    group = group_advantages([0.1, 0.1, 0.1, None], "standardised")  # their float mean is not 0.1
    assert group.state == "flat"
    assert group.values == (0.0, 0.0, 0.0, None)


def test_a_reward_that_is_no_number_is_refused():
    with pytest.raises(ObjectiveError, match="not finite"):
        group_advantages([1.0, float("nan")], "standardised")


@pytest.mark.parametrize("baseline", ["standardised", "centred", "leave_one_out"])
@given(values=rewards)
def test_against_the_definition(baseline, values):
    group = group_advantages(values, baseline)
    graded = [value for value in values if value is not None]
    if len(graded) < 2 or min(graded) == max(graded):
        assert group.state in ("skipped", "flat")
        return
    mean = statistics.fmean(graded)
    expected = {
        "standardised": lambda own: (own - mean) / (statistics.stdev(graded) + STD_EPSILON),
        "centred": lambda own: own - mean,
        "leave_one_out": lambda own: own - (sum(graded) - own) / (len(graded) - 1),
    }[baseline]
    assert [a is None for a in group.values] == [value is None for value in values]
    assert [a for a in group.values if a is not None] == pytest.approx(
        [expected(value) for value in graded], rel=1e-6, abs=1e-6
    )
    assert sum(a for a in group.values if a is not None) == pytest.approx(0, abs=1e-6)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_weights_share_one_trial_by_tokens(owned):
    weights = segment_weights(owned)
    assert sum(weights) == pytest.approx(1.0)
    assert [w * sum(owned) for w in weights] == pytest.approx(owned)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=8))
def test_or_each_segment_takes_as_much(owned):
    assert segment_weights(owned, "equal") == pytest.approx([1 / len(owned)] * len(owned))


def test_a_segment_without_tokens_has_no_weight():
    for rule in ("tokens", "equal"):
        with pytest.raises(ObjectiveError, match="owns no token"):
            segment_weights([3, 0], rule)


owned_by = st.dictionaries(st.integers(0, 99), st.integers(1, 5000), min_size=1, max_size=8)


@given(owned_by)
def test_a_trial_or_a_token_weighs_the_same(owned):
    n, total = len(owned), sum(owned.values())
    assert trial_scales(owned, "trial", 0) == pytest.approx(dict.fromkeys(owned, 1 / n))
    per_token = {trial: scale / owned[trial] for trial, scale in trial_scales(owned, "token", 0).items()}
    assert per_token == pytest.approx(dict.fromkeys(owned, 1 / total))
    assert sum(trial_scales(owned, "token", 0).values()) == pytest.approx(1.0)


@given(owned_by, st.integers(1, 5000))
def test_a_constant_makes_a_token_weigh_the_same_whatever_the_others_are(owned, longest):
    scales = trial_scales(owned, "constant", longest)
    assert {t: scale / owned[t] for t, scale in scales.items()} == pytest.approx(
        dict.fromkeys(owned, 1 / (len(owned) * longest))
    )
    with pytest.raises(ObjectiveError, match="longest"):
        trial_scales(owned, "constant", 0)


@given(owned_by, st.sampled_from(["trial", "token", "constant"]), st.integers(1, 3))
def test_a_trial_that_counts_for_some_is_as_so_many_of_it(owned, weighting, times):
    """Counted for k, a trial weighs what k trials of its length weigh together; the others lose as much to it."""
    some = min(owned)
    counts = {trial: float(times) if trial == some else 1.0 for trial in owned}
    copies = {1000 + copy: owned[some] for copy in range(times - 1)}
    whole = trial_scales(owned | copies, weighting, 50)
    found = trial_scales(owned, weighting, 50, counts)
    assert found[some] == pytest.approx(times * whole[some])
    assert {t: v for t, v in found.items() if t != some} == pytest.approx({t: whole[t] for t in owned if t != some})
    half = {trial: count / 2 for trial, count in counts.items()}
    if weighting != "constant":
        assert trial_scales(owned, weighting, 50, half) == pytest.approx(found)
