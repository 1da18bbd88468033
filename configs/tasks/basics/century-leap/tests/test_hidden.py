import datetime

import pytest
from calendaric.days import days_between, days_in_month, is_leap, ordinal, weekday


def test_centuries():
    assert [year for year in (1600, 1700, 1800, 1900, 2000, 2100, 2400) if is_leap(year)] == [1600, 2000, 2400]


def test_february():
    assert days_in_month(1900, 2) == 28
    assert days_in_month(2000, 2) == 29
    assert days_in_month(2024, 2) == 29
    assert days_in_month(2023, 2) == 28


def test_ordinal_agrees_with_datetime():
    day = datetime.date(1, 1, 1)
    while day.year < 9990:
        assert ordinal(day.year, day.month, day.day) == day.toordinal()
        day += datetime.timedelta(days=97)


def test_weekdays():
    assert weekday(1900, 1, 1) == "Mon"
    assert weekday(2100, 3, 1) == "Mon"
    assert weekday(2024, 2, 29) == "Thu"


def test_far_future():
    assert days_between((12000, 1, 1), (12400, 1, 1)) == 146097


def test_between():
    assert days_between((1900, 2, 28), (1900, 3, 1)) == 1
    assert days_between((2000, 2, 28), (2000, 3, 1)) == 2
    assert days_between((2024, 3, 1), (2024, 2, 1)) == -29


def test_ordinary_months():
    assert [days_in_month(2023, month) for month in range(1, 13)] == [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    assert days_between((2023, 1, 31), (2023, 4, 1)) == 60
    with pytest.raises(ValueError):
        ordinal(2023, 4, 31)


def test_days_that_do_not_exist():
    with pytest.raises(ValueError):
        ordinal(1900, 2, 29)
    with pytest.raises(ValueError):
        days_in_month(2024, 13)
