"""When to try again what infrastructure broke: an outage of a moment must not use up every attempt in that moment."""

from __future__ import annotations

from lego.rundb.store import now

GROWTH = 5.0
LONGEST = 300.0
"""Seconds."""


def later(pause: float, tries: int) -> float:
    """The Unix time from which the next try is due, after `tries` of them; `pause` is that after the first, in
    seconds."""
    return now() + min(pause * GROWTH ** (tries - 1), LONGEST)
