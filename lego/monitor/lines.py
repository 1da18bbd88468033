"""Lines to be read: text with a name for its look, wrapped to a width. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len, chop_cells

Look = Literal["", "title", "soft", "good", "bad", "warn", "think"]


@dataclass(frozen=True)
class Line:
    """One line as written. `margin` stands before it (blank before what it wraps to); `mark` makes it a place that
    n and p go to. The text is safe to show: whoever makes a Line has passed it through `lego.plain.neutral`."""

    text: str
    look: Look = ""
    margin: str = ""
    mark: bool = False


def wrap(lines: list[Line], width: int) -> list[Line]:
    """The lines, none wider than `width` cells (which is at least 8): broken at a space where one is near."""
    out: list[Line] = []
    for line in lines:
        text = line.text.expandtabs(4)
        room = max(width - cell_len(line.margin), 4)
        if cell_len(text) <= room:
            out.append(Line(text, line.look, line.margin, line.mark))
            continue
        margin, mark, blank = line.margin, line.mark, " " * cell_len(line.margin)
        for piece in _pieces(text, room):
            out.append(Line(piece, line.look, margin, mark))
            margin, mark = blank, False
    return out


def _pieces(text: str, room: int) -> list[str]:
    pieces: list[str] = []
    if not text.isascii():
        return chop_cells(text, room)
    while len(text) > room:
        cut = text.rfind(" ", room // 2, room + 1)
        cut = cut + 1 if cut > 0 else room
        pieces.append(text[:cut].rstrip(" ") if cut > room else text[:cut])
        text = text[cut:]
    return [*pieces, text]


def find(lines: list[Line], text: str, start: int, step: int = 1) -> int | None:
    """The next line that holds `text`, whatever its case, going by `step` from beside `start` and around the end."""
    wanted = text.lower()
    for away in range(1, len(lines) + 1):
        at = (start + step * away) % len(lines)
        if wanted in lines[at].text.lower():
            return at
    return None
