"""Times as text."""

from datetime import datetime, timedelta, timezone


def offset(minutes):
    return timezone(timedelta(minutes=minutes))


def read(text, zone):
    """The point in time that an ISO 8601 text names."""
    return datetime.fromisoformat(text[:16])


def write(moment, zone):
    return moment.isoformat(timespec="minutes")
