import re

from timing.report import report
from timing.text import format_duration


def test_seconds_roll_into_minutes():
    assert format_duration(119.7) == "2m 00s"
    assert format_duration(125.2) == "2m 05s"


def test_minutes_roll_into_hours():
    assert format_duration(3599.6) == "1h 00m 00s"
    assert format_duration(7199.9) == "2h 00m 00s"


def test_just_below_a_minute():
    assert format_duration(59.97) == "1m 00s"
    assert format_duration(59.94) == "59.9s"


def test_short_durations_keep_a_decimal():
    assert format_duration(0) == "0.0s"
    assert format_duration(4.25) in ("4.2s", "4.3s")


def test_whole_numbers():
    assert format_duration(60) == "1m 00s"
    assert format_duration(3600) == "1h 00m 00s"
    assert format_duration(7389) == "2h 03m 09s"


def test_negative():
    assert format_duration(-119.7) == "-2m 00s"


def test_sixty_never_shows():
    for tenths in range(0, 80000, 7):
        assert not re.search(r"\b60(\.0)?[ms]", format_duration(tenths / 10 + 0.06))


def test_report_total():
    assert report([("build", 59.9), ("test", 59.8)]) == "build  59.9s\ntest   59.8s\ntotal  2m 00s"
