"""Day arithmetic in the proleptic Gregorian calendar, years from 1 on, without an upper end."""

_MONTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def is_leap(year):
    return year % 4 == 0


def days_in_month(year, month):
    if not 1 <= month <= 12:
        raise ValueError(f"no such month: {month}")
    return 29 if month == 2 and is_leap(year) else _MONTHS[month - 1]


def ordinal(year, month, day):
    """Days since 0000-12-31, so that 0001-01-01 is 1."""
    if not 1 <= day <= days_in_month(year, month):
        raise ValueError(f"no such day: {year:04d}-{month:02d}-{day:02d}")
    before = year - 1
    return before * 365 + before // 4 + sum(days_in_month(year, m) for m in range(1, month)) + day


def weekday(year, month, day):
    return WEEKDAYS[(ordinal(year, month, day) - 1) % 7]


def days_between(first, second):
    """How many days `second` is after `first`; both are (year, month, day)."""
    return ordinal(*second) - ordinal(*first)
