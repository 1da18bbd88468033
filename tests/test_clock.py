from __future__ import annotations

from lego.clock import TrialClock


class Hands:
    """A time source that the test moves."""

    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def test_the_clock_stands_still_while_any_pause_is_open() -> None:
    hands = Hands()
    clock = TrialClock(10, now=hands)
    hands.time += 2
    with clock.pause():
        hands.time += 5
        with clock.pause():
            hands.time += 5
        hands.time += 5
        assert (clock.elapsed, clock.waited) == (2, 15)
    hands.time += 1
    assert (clock.elapsed, clock.remaining(), clock.waited) == (3, 7, 15)


def test_overlapping_pauses_count_once() -> None:
    hands = Hands()
    clock = TrialClock(10, now=hands)
    first, second = clock.pause(), clock.pause()
    first.__enter__()
    hands.time += 3
    second.__enter__()
    hands.time += 3
    first.__exit__(None, None, None)
    hands.time += 3
    second.__exit__(None, None, None)
    assert (clock.waited, clock.elapsed) == (9, 0)


def test_restart_forgets_what_came_before_the_work() -> None:
    hands = Hands()
    clock = TrialClock(10, now=hands)
    hands.time += 8
    clock.restart()
    hands.time += 1
    assert clock.remaining() == 9


def test_restart_inside_a_pause_keeps_the_clock_standing() -> None:
    hands = Hands()
    clock = TrialClock(10, now=hands)
    with clock.pause():
        hands.time += 4
        clock.restart()
        hands.time += 4
    assert (clock.elapsed, clock.waited) == (0, 4)
