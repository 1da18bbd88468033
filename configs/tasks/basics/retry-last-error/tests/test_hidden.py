import pytest
from retrying import retry


def failing(times, error=OSError, **options):
    calls, naps = [], []

    @retry(sleep=naps.append, **options)
    def work(value):
        """Do it."""
        calls.append(value)
        if len(calls) <= times:
            raise error(f"failure {len(calls)}")
        return value * 2

    return work, calls, naps


def test_last_error_is_raised():
    work, calls, naps = failing(99)
    with pytest.raises(OSError, match="failure 3"):
        work(1)
    assert len(calls) == 3


def test_success_after_failures():
    work, calls, naps = failing(2)
    assert work(21) == 42
    assert calls == [21, 21, 21] and len(naps) == 2


def test_no_sleep_after_the_last_failure():
    work, calls, naps = failing(99, attempts=2, delay=1)
    with pytest.raises(OSError):
        work(1)
    assert naps == [1]


def test_delays_double_up_to_the_limit():
    work, calls, naps = failing(99, attempts=6, delay=1, max_delay=5)
    with pytest.raises(OSError):
        work(1)
    assert naps == [1, 2, 4, 5, 5]


def test_first_delay_respects_the_limit():
    work, calls, naps = failing(1, delay=9, max_delay=2)
    work(1)
    assert naps == [2]


def test_other_errors_end_it():
    work, calls, naps = failing(99, error=KeyError, on=(OSError, ValueError))
    with pytest.raises(KeyError):
        work(1)
    assert len(calls) == 1 and naps == []


def test_one_attempt():
    work, calls, naps = failing(99, attempts=1)
    with pytest.raises(OSError):
        work(1)
    assert len(calls) == 1 and naps == []


def test_name_and_docstring_are_kept():
    work, _, _ = failing(0)
    assert (work.__name__, work.__doc__) == ("work", "Do it.")
    assert work(1) == 2
