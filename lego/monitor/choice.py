"""One of a few, chosen from a list over the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from lego.monitor.tables import Column, PlainTable, Row


class ChoiceScreen(ModalScreen[str | None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", "Back"),
    ]

    def __init__(self, title: str, choices: Sequence[str], chosen: str) -> None:
        super().__init__()
        self._title, self._choices, self._chosen = title, list(choices), chosen

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self._title}   (enter; esc goes back)"), markup=False)
            yield PlainTable(id="choices")

    def on_mount(self) -> None:
        table = self.query_one(PlainTable)
        rows = [Row(choice, [f" {choice}"]) for choice in self._choices]
        table.styles.height = len(rows)
        table.show_header = False
        table.lay([Column("", None)], rows, 48, at=self._chosen)
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self.dismiss(event.row_key.value)
