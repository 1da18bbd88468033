"""Cut listings into pages."""

from dataclasses import dataclass
from typing import Any, Sequence


@dataclass(frozen=True)
class Page:
    items: Sequence[Any]
    number: int
    pages: int

    @property
    def has_next(self):
        return self.number < self.pages

    @property
    def has_previous(self):
        return self.number > 1


def page_count(total, per_page):
    if per_page < 1:
        raise ValueError("per_page must be at least 1")
    return max(1, total // per_page)


def paginate(items, number=1, per_page=20):
    """Page `number`, counted from 1; numbers out of range give the nearest page there is."""
    pages = page_count(len(items), per_page)
    number = min(max(number, 1), pages)
    start = (number - 1) * per_page
    return Page(items[start : start + per_page], number, pages)
