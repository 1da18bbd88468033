"""When a room is free."""

from rooms.intervals import merge


def free_times(bookings, opens=8, closes=18):
    """The stretches between `opens` and `closes` that no booking touches."""
    free = []
    at = opens
    for start, end in merge(bookings):
        if start > at:
            free.append((at, start))
        at = end
    if at < closes:
        free.append((at, closes))
    return free


def can_book(bookings, start, end, opens=8, closes=18):
    return any(first <= start and end <= last for first, last in free_times(bookings, opens, closes))
