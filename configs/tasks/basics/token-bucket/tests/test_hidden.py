import pytest
from limits import Limiter


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def limiter(capacity=4, rate=1.0):
    clock = Clock()
    return Limiter(capacity, rate, clock), clock


def drained(capacity=4, rate=1.0):
    one, clock = limiter(capacity, rate)
    while one.allow("ann"):
        pass
    return one, clock


def test_starts_full():
    one, _ = limiter()
    assert [one.allow("ann") for _ in range(5)] == [True] * 4 + [False]


def test_fractions_add_up():
    one, clock = drained()
    granted = 0
    for _ in range(40):
        clock.now += 0.25
        granted += one.allow("ann")
    assert granted == 10


def test_slow_rate():
    one, clock = drained(capacity=1, rate=0.125)
    answers = []
    for _ in range(16):
        clock.now += 1
        answers.append(one.allow("ann"))
    assert answers == ([False] * 7 + [True]) * 2


def test_never_overfull():
    one, clock = drained()
    clock.now += 3600
    assert [one.allow("ann") for _ in range(5)] == [True] * 4 + [False]


def test_full_from_the_start_does_not_grow():
    one, clock = limiter()
    one.allow("ann")
    clock.now += 50
    assert one.allow("ann", 4) and not one.allow("ann")


def test_clock_going_back():
    one, clock = drained()
    clock.now -= 100
    assert not one.allow("ann")
    clock.now += 100
    assert not one.allow("ann")
    clock.now += 1
    assert one.allow("ann")


def test_clock_going_back_takes_nothing():
    one, clock = limiter()
    assert one.allow("ann")
    clock.now -= 100
    assert one.allow("ann", 3)
    assert not one.allow("ann")


def test_clients_are_apart():
    one, _ = drained()
    assert one.allow("bob", 4)
    assert not one.allow("ann")


def test_retry_after():
    one, clock = drained(rate=2.0)
    assert one.retry_after("ann") == pytest.approx(0.5)
    assert one.retry_after("ann", 3) == pytest.approx(1.5)
    clock.now += 0.25
    assert one.retry_after("ann") == pytest.approx(0.25)
    assert one.retry_after("new") == 0.0


def test_retry_after_takes_nothing():
    one, _ = limiter()
    for _ in range(20):
        assert one.retry_after("ann", 4) == 0.0
    assert one.allow("ann", 4)


def test_impossible_cost():
    one, _ = limiter()
    for ask in (one.allow, one.retry_after):
        with pytest.raises(ValueError):
            ask("ann", 5)
    assert one.allow("ann", 4)
