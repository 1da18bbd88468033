"""A table of steps and how long they took."""

from timing.text import format_duration


def report(steps):
    """`steps` is a list of (name, seconds); the last line is the total."""
    rows = [(name, format_duration(seconds)) for name, seconds in steps]
    rows.append(("total", format_duration(sum(seconds for _, seconds in steps))))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
