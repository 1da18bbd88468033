"""Does a cron expression match a point in time?"""

from cron.fields import CronError, parse_field

_LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def parse(expression):
    """Five sets of numbers: minutes, hours, days of the month, months, days of the week (0 is Sunday)."""
    fields = expression.split()
    if len(fields) != len(_LIMITS):
        raise CronError(f"five fields wanted, not {len(fields)}: {expression!r}")
    return [parse_field(text, low, high) for text, (low, high) in zip(fields, _LIMITS)]


def matches(expression, moment):
    """Whether the job runs in the minute of `moment`, a datetime."""
    minutes, hours, days, months, weekdays = parse(expression)
    return (
        moment.minute in minutes
        and moment.hour in hours
        and moment.month in months
        and moment.day in days
        and moment.weekday() in weekdays
    )
