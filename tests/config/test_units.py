import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import ConfigError
from lego.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60),
        ("2m", 120),
        ("1h30m", 5400),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1d", 86400),
        ("90", 90),
        ("1h 30m", 5400),
        ("2M", 120),
        ("1m30s", 90),
    ],
)
def test_durations_are_read_as_people_write_them(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "soon", "-5s", "5 parsecs", "0s", "0", "s", "1h30", "9" * 400, "inf", "nan", "5s5"]
)
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512m", 512 * 2**20),
        ("1g", 2**30),
        ("1.5GiB", 3 * 2**29),
        ("2kb", 2048),
        ("100", 100),
        ("0", 0),
        ("1 t", 2**40),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "big", "-1g", "1gg", "1.g", "m", "1e3", "5ib5", "9" * 400 + "g"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ConfigError, match="not a size"):
        parse_size(text)


@given(st.integers(0, 99), st.integers(0, 59), st.integers(1, 59))
def test_parts_of_a_duration_add_up(hours, minutes, seconds):
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds
