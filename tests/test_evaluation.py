import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.evaluation import mean_pass_at_k, pass_at_k, sign_test, solve_rate, wilson


@pytest.mark.parametrize(
    ("solved", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilson_against_published_values(solved, trials, low, high):
    assert wilson(solved, trials) == pytest.approx((low, high), abs=6e-5)


def test_wilson_without_trials_says_nothing():
    assert wilson(0, 0) == (0.0, 1.0)
    with pytest.raises(ValueError):
        wilson(3, 2)


@given(st.integers(0, 200), st.integers(1, 200))
def test_wilson_holds_the_rate_and_its_own_definition(solved, trials):
    solved = min(solved, trials)
    low, high = wilson(solved, trials)
    rate = solved / trials
    assert 0 <= low <= rate <= high <= 1
    # Both ends are the proportions whose own standard error puts the observed rate z away.
    for end in (low, high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(rate - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / trials), abs=1e-5)


@pytest.mark.parametrize(("n", "c"), [(5, 0), (5, 2), (5, 5), (6, 3)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_pass_at_k_is_the_share_of_draws_that_hold_a_solve(n, c, k):
    draws = list(combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(any(i < c for i in draw) for draw in draws) / len(draws))


def test_pass_at_k_needs_k_trials():
    with pytest.raises(ValueError):
        pass_at_k(3, 1, 4)
    assert mean_pass_at_k([(4, 1), (4, 4), (1, 1)], 2) == pytest.approx((0.5 + 1.0) / 2)
    assert mean_pass_at_k([(1, 1)], 2) is None


def test_solve_rate_with_one_trial_a_task_is_plain_wilson():
    rate = solve_rate({f"t{i}": [i < 36] for i in range(128)} | {"ungraded": []})
    assert (rate.mean, rate.tasks, rate.trials) == (36 / 128, 128, 128)
    assert (rate.low, rate.high) == pytest.approx(wilson(36, 128))


def test_solve_rate_does_not_count_alike_trials_as_evidence():
    alike = solve_rate({f"t{i}": [i < 5] * 8 for i in range(10)})  # every task always or never
    assert (alike.low, alike.high) == pytest.approx(wilson(5, 10))
    mixed = solve_rate({f"t{i}": [True, False] * 4 for i in range(10)})  # tasks do not differ
    assert (mixed.low, mixed.high) == pytest.approx(wilson(40, 80))
    assert solve_rate({}).high == 1.0


def test_sign_test():
    assert sign_test(0, 0) == 1.0
    assert sign_test(5, 0) == pytest.approx(2 / 32)
    assert sign_test(3, 9) == sign_test(9, 3) == pytest.approx(0.1459961)
    with pytest.raises(ValueError):
        sign_test(-1, 0)
