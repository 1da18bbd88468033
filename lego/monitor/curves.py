"""The curves: a list of what was recorded, and the chosen one drawn or in numbers."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import DataTable, Static

from lego.monitor.base import MonitorScreen
from lego.monitor.chart import chart
from lego.monitor.lines import Line, wrap
from lego.monitor.pager import Pager
from lego.monitor.tables import Column, PlainTable, Row
from lego.report.curves import Curve, Point, number

_LIST = 34


class CurvesScreen(MonitorScreen):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("v", "numbers", "Numbers")]
    placeholder = "part of a curve's name"

    def __init__(self) -> None:
        super().__init__()
        self._curves: list[Curve] = []
        self._numbers = False
        self._text = ""

    def compose_body(self) -> ComposeResult:
        with Horizontal():
            yield PlainTable(id="body")
            with Vertical(id="curve"):
                yield Static(id="chart", markup=False)
                yield Pager(id="numbers")

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_view)

    def update_view(self) -> None:
        monitor = self.monitor
        everything = monitor.feed.curves.all(monitor.snapshot.rounds)
        self._curves = [curve for curve in everything if self._text.lower() in curve.title.lower()]
        rows = [
            Row(curve.name, (curve.title, number(curve.points[-1].y) if curve.points else "–"))
            for curve in self._curves
        ]
        self.query_one("#body", PlainTable).lay((Column("curve", None), Column("last", 7, True)), rows, _LIST)
        self.title_is(" curves")
        self.status_is(f"{len(rows)} curves" + (f"   only “{self._text}”" if self._text else ""))
        self._draw()

    def _draw(self) -> None:
        key = self.query_one("#body", PlainTable).key_at_cursor
        curve = next((curve for curve in self._curves if curve.name == key), None)
        picture, numbers = self.query_one("#chart", Static), self.query_one("#numbers", Pager)
        picture.display, numbers.display = not self._numbers, self._numbers
        if curve is None:
            picture.update(Text("nothing was recorded yet"))
            numbers.show([])
            return
        width = max(self.size.width - _LIST - 2, 20)
        about = [Line(f"{curve.title}{f' ({curve.unit})' if curve.unit else ''}", "title"), Line(curve.definition)]
        about += [Line(f"{curve.left_out} recorded values are no finite numbers: not drawn")] if curve.left_out else []
        if self._numbers:
            numbers.show([*about, *(_point(curve, point) for point in reversed(curve.points))])
            return
        above = wrap(about, width)
        room = max(self.size.height - 4 - len(above), 5)
        drawn = Text("\n".join([*(line.text for line in above), *chart(curve, width, room)]), no_wrap=True)
        drawn.stylize("bold", 0, len(above[0].text))
        picture.update(drawn)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.action_numbers()

    def action_numbers(self) -> None:
        self._numbers = not self._numbers
        self._draw()

    def searched(self, text: str) -> None:
        self._text = text
        self.update_view()


def _point(curve: Curve, point: Point) -> Line:
    around = f" [{number(point.low)}-{number(point.high)}]" if point.low is not None and point.high is not None else ""
    return Line(f"{number(point.y)}{around}  {point.note}".rstrip(), margin=f"{curve.x} {point.x}: ")
