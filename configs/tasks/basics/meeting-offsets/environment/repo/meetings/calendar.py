"""A calendar: meetings read from and written to JSON."""

import json
from datetime import date, datetime, time, timedelta

from meetings.model import Meeting
from meetings.times import offset, read, write


class Calendar:
    def __init__(self, offset_minutes=0):
        self.zone = offset(offset_minutes)
        self.meetings = []

    def load(self, text):
        """Add the meetings of a JSON list. Raises ValueError where one ends before it starts."""
        for entry in json.loads(text):
            meeting = Meeting(entry["title"], read(entry["start"], self.zone), read(entry["end"], self.zone))
            if meeting.end < meeting.start:
                raise ValueError(f"{meeting.title} ends before it starts")
            self.meetings.append(meeting)

    def dump(self):
        return json.dumps(
            [
                {"title": one.title, "start": write(one.start, self.zone), "end": write(one.end, self.zone)}
                for one in self.meetings
            ]
        )

    def clashes(self):
        """Pairs of titles of meetings that overlap, in the order they were added."""
        return [
            (first.title, second.title)
            for number, first in enumerate(self.meetings)
            for second in self.meetings[number + 1 :]
            if first.overlaps(second.start, second.end)
        ]

    def agenda(self, day: date):
        """Titles of the day's meetings."""
        return [one.title for one in self.meetings if one.start.date() == day]
