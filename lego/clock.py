"""The trial clock: wall time less the time the trial spent waiting for our own engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager


class TrialClock:
    """Counts down `limit` seconds, standing still while at least one pause is open.

    Pauses nest and overlap (a harness may have several calls in flight): the clock runs again when the last
    one closes. `now` is the time source in seconds, monotonic.
    """

    def __init__(self, limit: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._now = now
        self._started = now()
        self._paused_total = 0.0
        self._pauses = 0
        self._paused_since = 0.0

    def restart(self) -> None:
        """Count from now: the work itself begins only now."""
        self._started = self._now()
        self._paused_total = 0.0
        self._paused_since = self._started

    def pause(self) -> AbstractContextManager[None]:
        """The clock stands still while this block runs."""
        return _Pause(self)

    @property
    def waited(self) -> float:
        """Seconds spent paused so far."""
        running = self._now() - self._paused_since if self._pauses else 0.0
        return self._paused_total + running

    @property
    def elapsed(self) -> float:
        """Seconds that count against the limit."""
        return self._now() - self._started - self.waited

    def remaining(self) -> float:
        return self.limit - self.elapsed

    def _stop(self) -> None:
        if self._pauses == 0:
            self._paused_since = self._now()
        self._pauses += 1

    def _go_on(self) -> None:
        self._pauses -= 1
        if self._pauses == 0:
            self._paused_total += self._now() - self._paused_since


class _Pause:
    """A class, for one is opened with every sampled piece."""

    __slots__ = ("_clock",)

    def __init__(self, clock: TrialClock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._clock._stop()

    def __exit__(self, *exc: object) -> None:
        self._clock._go_on()
