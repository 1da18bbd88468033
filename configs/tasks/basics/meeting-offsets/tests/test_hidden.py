import json
from datetime import date

import pytest
from meetings import Calendar


def calendar(entries, offset=0):
    result = Calendar(offset)
    result.load(json.dumps([{"title": title, "start": start, "end": end} for title, start, end in entries]))
    return result


def starts(one):
    return [entry["start"] for entry in json.loads(one.dump())]


def test_offsets_are_understood():
    one = calendar([("a", "2024-03-01T09:00+05:30", "2024-03-01T10:00+05:30")])
    assert starts(one) == ["2024-03-01T03:30+00:00"]


def test_z_is_utc():
    one = calendar([("a", "2024-03-01T09:00Z", "2024-03-01T10:00:00Z")], offset=60)
    assert starts(one) == ["2024-03-01T10:00+01:00"]


def test_no_offset_is_the_calendars_own():
    one = calendar([("a", "2024-03-01T09:00", "2024-03-01T10:00")], offset=-180)
    assert starts(one) == ["2024-03-01T09:00-03:00"]


def test_seconds_are_kept():
    one = calendar([("a", "2024-03-01T09:00:30Z", "2024-03-01T10:00Z")])
    again = Calendar(0)
    again.load(one.dump())
    assert again.meetings[0].start.second == 30


def test_round_trip():
    one = calendar([("a", "2024-03-01T23:30-08:00", "2024-03-02T01:00-08:00")], offset=330)
    other = Calendar(-120)
    other.load(one.dump())
    assert other.meetings[0].start == one.meetings[0].start
    assert other.meetings[0].end == one.meetings[0].end


def test_clashes_are_of_instants():
    one = calendar([
        ("delhi", "2024-03-01T15:00+05:30", "2024-03-01T16:00+05:30"),
        ("london", "2024-03-01T09:45Z", "2024-03-01T10:15Z"),
        ("same face", "2024-03-01T15:00Z", "2024-03-01T16:00Z"),
        ("other day", "2024-03-02T09:45Z", "2024-03-02T10:15Z"),
    ])
    assert one.clashes() == [("delhi", "london")]


def test_touching_is_no_clash():
    one = calendar([("a", "2024-03-01T09:00", "2024-03-01T10:00"), ("b", "2024-03-01T10:00", "2024-03-01T11:00")])
    assert one.clashes() == []


def test_clash_over_midnight():
    one = calendar([("night", "2024-03-01T22:00", "2024-03-02T06:00"), ("call", "2024-03-02T05:00", "2024-03-02T05:30")])
    assert one.clashes() == [("night", "call")]


def test_agenda_in_the_calendars_offset():
    one = calendar([
        ("late", "2024-03-01T23:30-05:00", "2024-03-02T00:30-05:00"),
        ("early", "2024-03-02T08:00", "2024-03-02T09:00"),
    ], offset=60)
    assert one.agenda(date(2024, 3, 2)) == ["late", "early"]
    assert one.agenda(date(2024, 3, 1)) == []


def test_agenda_holds_what_overlaps_the_day():
    one = calendar([
        ("day", "2024-03-02T12:00", "2024-03-02T13:00"),
        ("night", "2024-03-01T22:00", "2024-03-02T06:00"),
        ("until midnight", "2024-03-01T20:00", "2024-03-02T00:00"),
        ("tomorrow", "2024-03-03T00:00", "2024-03-03T01:00"),
    ])
    assert one.agenda(date(2024, 3, 2)) == ["night", "day"]


def test_end_before_start():
    with pytest.raises(ValueError, match="back"):
        calendar([("back", "2024-03-01T10:00Z", "2024-03-01T10:30+01:00")])
    assert len(calendar([("ok", "2024-03-01T10:00+01:00", "2024-03-01T09:30Z")]).meetings) == 1
