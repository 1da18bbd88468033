"""A meeting."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Meeting:
    title: str
    start: datetime
    end: datetime

    def overlaps(self, start, end):
        return self.start.time() <= end.time() and start.time() <= self.end.time()
