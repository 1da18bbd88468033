"""A widget to read lines in: wrapped to its width, searched, gone through by marks. Draws only what is in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from lego.monitor.lines import Line, find, wrap

LOOKS: dict[str, Style] = {
    "": Style(),
    "title": Style(bold=True),
    "soft": Style(dim=True),
    "good": Style(color="green"),
    "bad": Style(color="red"),
    "warn": Style(color="yellow", bold=True),
    "think": Style(italic=True, color="magenta"),
}
"""No look says anything that the words do not say too."""


class Pager(ScrollView, can_focus=True):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "scroll_down", "Down", show=False),
        Binding("k,up", "scroll_up", "Up", show=False),
        Binding("space,pagedown", "page_down", "Page down", show=False),
        Binding("b,pageup", "page_up", "Page up", show=False),
        Binding("right_square_bracket", "mark(1)", "Next", key_display="]"),
        Binding("left_square_bracket", "mark(-1)", "Previous", key_display="["),
    ]

    def __init__(self, lines: Sequence[Line] = (), *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._written = list(lines)
        self.lines: list[Line] = []
        self._hit: int | None = None

    def show(self, lines: Sequence[Line]) -> None:
        """Other lines, from the same place as before."""
        self._written = list(lines)
        self._lay()

    def _lay(self) -> None:
        width = self.scrollable_content_region.width
        if width < 8:
            return
        self.lines = wrap(self._written, width)
        self._hit = None
        self.virtual_size = Size(width, len(self.lines))
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self._lay()

    def render_line(self, y: int) -> Strip:
        at = y + self.scroll_offset.y
        width = self.size.width
        if at >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = self.lines[at]
        style = self.rich_style + LOOKS[line.look]
        if at == self._hit:
            style += Style(reverse=True)
        segments = [Segment(line.margin, self.rich_style + LOOKS["soft"]), Segment(line.text, style)]
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def search(self, text: str, step: int = 1) -> bool:
        """Go to the next line with `text`; whether there is one."""
        start = self._hit if self._hit is not None else self.scroll_offset.y - (1 if step > 0 else 0)
        self._hit = find(self.lines, text, start, step) if text else None
        if self._hit is not None:
            self._to(self._hit - self.size.height // 3)
        self.refresh()
        return self._hit is not None

    def action_mark(self, step: int) -> None:
        here = self.scroll_offset.y
        marks = [at for at, line in enumerate(self.lines) if line.mark]
        ahead = [at for at in marks if (at > here if step > 0 else at < here)]
        if ahead:
            self._to(ahead[0] if step > 0 else ahead[-1])

    def _to(self, line: int) -> None:
        self.scroll_to(y=max(line, 0), animate=False, immediate=True)
