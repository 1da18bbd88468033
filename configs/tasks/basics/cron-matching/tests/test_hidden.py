from datetime import datetime

import pytest
from cron import CronError, matches

SUNDAY = datetime(2024, 3, 10, 12, 30)
MONDAY = datetime(2024, 3, 11, 12, 30)
SATURDAY = datetime(2024, 3, 9, 12, 30)


def minutes(expression):
    return [minute for minute in range(60) if matches(expression, MONDAY.replace(minute=minute))]


def test_steps():
    assert minutes("*/15 * * * *") == [0, 15, 30, 45]
    assert minutes("*/7 * * * *") == [0, 7, 14, 21, 28, 35, 42, 49, 56]


def test_ranges_with_steps():
    assert minutes("10-30/5 * * * *") == [10, 15, 20, 25, 30]
    assert minutes("10-13 * * * *") == [10, 11, 12, 13]


def test_lists():
    assert minutes("1,5-7,50-59/4 * * * *") == [1, 5, 6, 7, 50, 54, 58]


def test_sunday():
    for day in ("0", "7"):
        assert matches(f"30 12 * * {day}", SUNDAY)
        assert not matches(f"30 12 * * {day}", MONDAY)
        assert not matches(f"30 12 * * {day}", SATURDAY)


def test_other_weekdays():
    assert matches("30 12 * * 1", MONDAY)
    assert matches("30 12 * * 1-5", MONDAY) and not matches("30 12 * * 1-5", SUNDAY)
    assert matches("30 12 * * 6,7", SATURDAY) and matches("30 12 * * 6,7", SUNDAY)


def test_either_day_is_enough():
    expression = "30 12 15 * 1"
    assert matches(expression, MONDAY)
    assert matches(expression, datetime(2024, 3, 15, 12, 30))
    assert not matches(expression, SUNDAY)


def test_one_restricted_day_decides():
    assert not matches("30 12 15 * *", MONDAY)
    assert matches("30 12 11 * *", MONDAY)
    assert matches("30 12 * * 1", MONDAY)


def test_other_fields_are_all_needed():
    assert not matches("30 11 11 3 1", MONDAY)
    assert not matches("30 12 11 4 1", MONDAY)
    assert matches("30 12 11 3 1", MONDAY)
    assert matches("30 9-17/3 * 3,6 *", MONDAY)


def test_bad_expressions():
    for expression in ("60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *",
                       "a * * * *", "1- * * * *", "5-1 * * * *", "* * * *", "1,,2 * * * *", "*/ * * * *"):
        with pytest.raises(CronError):
            matches(expression, MONDAY)
