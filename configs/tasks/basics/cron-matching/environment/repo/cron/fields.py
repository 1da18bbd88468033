"""One field of a cron expression."""


class CronError(ValueError):
    pass


def parse_field(text, low, high):
    """The set of numbers that a field such as `*/5`, `1-10/2` or `1,3,8` stands for."""
    values = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        step = int(step) if step else 1
        if span == "*":
            values.update(value for value in range(low, high + 1) if value % 5 == 0 or step == 1)
        elif "-" in span:
            first, last = span.split("-")
            values.update(range(int(first), high + 1 if step > 1 else int(last) + 1, step))
        else:
            values.add(int(span))
    return values
