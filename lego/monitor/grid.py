"""The task grid: tasks down, rounds across, solved of graded in each cell."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable

from lego.monitor.base import MonitorScreen
from lego.monitor.tables import Column, PlainTable, Row
from lego.rundb import views
from lego.rundb.views import Cell, RoundView

KINDS = ("train", "eval", "demo")
PAGE = 100
_NAME, _CELL = 26, 6


class GridScreen(MonitorScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "kind", "train/eval/demo"),
        Binding("left_square_bracket", "shift(1)", "Older", key_display="["),
        Binding("right_square_bracket", "shift(-1)", "Newer", key_display="]"),
    ]
    placeholder = "part of a task's name"

    def __init__(self) -> None:
        super().__init__()
        self.kind = "train"
        self._text = ""
        self._offset = 0
        self._shift = 0
        self._rounds: list[RoundView] = []

    def compose_body(self) -> ComposeResult:
        yield PlainTable(id="body", cells=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_view)

    def update_view(self) -> None:
        self._draw(None)

    def _draw(self, at: int | None) -> None:
        store = self.monitor.store
        of_kind = [round_ for round_ in self.monitor.snapshot.rounds if round_.kind == self.kind]
        fit = max((self.size.width - _NAME - 2) // (_CELL + 1), 1)
        self._shift = max(min(self._shift, len(of_kind) - fit), 0)
        end = len(of_kind) - self._shift
        self._rounds = of_kind[max(end - fit, 0) : end]
        ids = [round_.id for round_ in self._rounds]
        total = views.count_grid_tasks(store, ids, text=self._text)
        names = views.grid_tasks(store, ids, text=self._text, offset=self._offset, limit=PAGE)
        found = {(cell.task_id, cell.round_id): cell for id_ in ids for cell in views.cells(store, id_, names)}
        columns = [
            Column("task", _NAME, name=True),
            *(Column(f"{self._mark}{r.ordinal}", _CELL, True) for r in self._rounds),
        ]
        rows = [Row(name, [name, *(_text(found.get((name, id_))) for id_ in ids)]) for name in names]
        self.query_one("#body", PlainTable).lay(columns, rows, self.size.width, at=at)
        self.title_is(f" tasks by {self.kind} round: solved of graded trials")
        which = f"tasks {self._offset + 1}-{self._offset + len(names)} of {total}" if names else "no task"
        shown = f"rounds {self._rounds[0].ordinal}-{self._rounds[-1].ordinal} of {len(of_kind)}" if ids else "no round"
        self.status_is(f"{which}   {shown}" + (f"   only “{self._text}”" if self._text else ""))
        self._total = total

    @property
    def _mark(self) -> str:
        return self.kind[0]

    def on_plain_table_wanted(self, event: PlainTable.Wanted) -> None:
        last = max(self._total - 1, 0) // PAGE * PAGE
        offset = {"below": self._offset + PAGE, "above": self._offset - PAGE, "first": 0, "last": last}[event.where]
        if offset == self._offset or not 0 <= offset <= last:
            return
        self._offset = offset
        self._draw(PAGE - 1 if event.where in ("above", "last") else 0)

    def action_kind(self) -> None:
        self.kind = KINDS[(KINDS.index(self.kind) + 1) % len(KINDS)]
        self._offset = self._shift = 0
        self._draw(0)

    def action_shift(self, step: int) -> None:
        self._shift += step
        self._draw(None)

    def searched(self, text: str) -> None:
        self._text, self._offset = text, 0
        self._draw(0)

    def on_data_table_cell_selected(self, event: DataTable.CellSelected) -> None:
        task, column = event.cell_key.row_key.value, event.coordinate.column
        if task is not None and self._rounds:
            self.monitor.show_cell(self._rounds[max(column - 1, 0)].id, task)


def _text(cell: Cell | None) -> str:
    if cell is None:
        return "·"
    return f"{cell.solved}/{cell.graded}" + ("…" if cell.graded < cell.slots else "")
