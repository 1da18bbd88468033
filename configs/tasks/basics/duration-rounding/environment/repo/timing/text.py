"""How durations are written in reports."""


def format_duration(seconds):
    """`4.2s`, `1m 05s` or `2h 03m 09s`; negative durations carry a minus sign."""
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{int(minutes)}m {rest:02.0f}s"
    hours, minutes = divmod(minutes, 60)
    return f"{int(hours)}h {int(minutes):02d}m {rest:02.0f}s"
