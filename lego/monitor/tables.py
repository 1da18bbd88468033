"""Tables whose cells are plain text, and which ask for more at their ends. The cursor shows without colour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.coordinate import Coordinate
from textual.message import Message
from textual.widgets import DataTable

from lego.plain import one_line


@dataclass(frozen=True)
class Column:
    """width in cells, None for what is left over; `right` aligns numbers. name: what is too long loses its middle, for
    names often differ at their ends alone."""

    title: str
    width: int | None
    right: bool = False
    name: bool = False


@dataclass(frozen=True)
class Row:
    """`look` is a Rich style that says nothing the words do not."""

    key: str
    cells: Sequence[str]
    look: str = ""


class PlainTable(DataTable[Text]):
    """`Wanted` is posted when the cursor is to go past an end, or to the very first or last row."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select_cursor", "Open"),
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
        Binding("home,ctrl+home", "scroll_top", show=False),
        Binding("end,ctrl+end", "scroll_bottom", show=False),
    ]

    class Wanted(Message):
        def __init__(self, table: PlainTable, where: Literal["below", "above", "last", "first"]) -> None:
            super().__init__()
            self.table = table
            self.where = where

        @property
        def control(self) -> PlainTable:
            return self.table

    def __init__(self, *, id: str, cells: bool = False) -> None:
        super().__init__(id=id, cursor_type="cell" if cells else "row", cell_padding=0, zebra_stripes=False)
        self.keys: list[str] = []
        self._shown: object = None

    def lay(self, columns: Sequence[Column], rows: Sequence[Row], width: int, *, at: str | int | None = None) -> None:
        """Show these rows; the cursor goes to the row with key `at`, to row number `at`, or stays on its row."""
        kept = self.key_at_cursor if at is None else at
        wanted = (list(columns), [(row.key, *row.cells, row.look) for row in rows], width)
        if wanted == self._shown:
            if at is not None:
                self._put_cursor(kept)
            return
        self._shown = wanted
        column, top = self.cursor_column, self.scroll_y
        fixed = sum(column_.width + 1 for column_ in columns if column_.width is not None)
        loose = max(width - fixed - 1, 6)
        widths = [loose if column_.width is None else column_.width for column_ in columns]
        self.clear(columns=True)
        self._add_columns(
            [_cell(col.title, size, col.right) for col, size in zip(columns, widths, strict=True)], widths
        )
        for row in rows:
            cells = zip(row.cells, widths, columns, strict=True)
            texts = [_cell(text, size, col.right, row.look, col.name) for text, size, col in cells]
            self.add_row(*(texts if self.cursor_type == "cell" else [_joined(texts, widths)]), key=row.key)
        self.keys = [row.key for row in rows]
        if rows:
            self.scroll_to(y=top, animate=False, immediate=True)
            self._put_cursor(kept, min(column, len(self.columns) - 1))

    def _add_columns(self, titles: Sequence[Text], widths: Sequence[int]) -> None:
        if self.cursor_type == "cell":
            for title, size in zip(titles, widths, strict=True):
                self.add_column(title, width=size + 1)
        else:
            self.add_column(_joined(titles, widths), width=sum(widths) + len(widths))

    def _put_cursor(self, row: str | int | None, column: int | None = None) -> None:
        if isinstance(row, str):
            row = self.keys.index(row) if row in self.keys else min(self.cursor_row, len(self.keys) - 1)
        self.move_cursor(row=max(row or 0, 0), column=column, animate=False)

    @property
    def key_at_cursor(self) -> str | None:
        return self.keys[self.cursor_row] if 0 <= self.cursor_row < len(self.keys) else None

    def action_cursor_down(self) -> None:
        if self.cursor_row >= self.row_count - 1:
            self.post_message(self.Wanted(self, "below"))
        super().action_cursor_down()

    def action_cursor_up(self) -> None:
        if self.cursor_row <= 0:
            self.post_message(self.Wanted(self, "above"))
        super().action_cursor_up()

    def action_page_down(self) -> None:
        if self.cursor_row >= self.row_count - 1:
            self.post_message(self.Wanted(self, "below"))
        super().action_page_down()

    def action_page_up(self) -> None:
        if self.cursor_row <= 0:
            self.post_message(self.Wanted(self, "above"))
        super().action_page_up()

    def action_scroll_top(self) -> None:
        self.post_message(self.Wanted(self, "first"))
        self.cursor_coordinate = Coordinate(0, self.cursor_column)

    def action_scroll_bottom(self) -> None:
        self.post_message(self.Wanted(self, "last"))
        self.cursor_coordinate = Coordinate(max(self.row_count - 1, 0), self.cursor_column)


def _joined(texts: Sequence[Text], widths: Sequence[int]) -> Text:
    """A row as one text. Each cell of a table is drawn on its own, which is what a table costs."""
    line = Text(no_wrap=True)
    for text, size in zip(texts, widths, strict=True):
        line.append_text(text).append(" " * (size + 1 - text.cell_len))
    return line


def _cell(text: str, width: int, right: bool, look: str = "", name: bool = False) -> Text:
    """Never markup, never a control character, never wider than its column."""
    cell = Text(one_line(text), style=look, no_wrap=True)
    if name and cell.cell_len > width and cell.plain.isascii():
        head = (width - 1) // 3
        cell = Text(f"{cell.plain[:head]}…{cell.plain[head + 1 - width :]}", style=look, no_wrap=True)
    cell.truncate(width, overflow="ellipsis")
    if right:
        cell.align("right", width)
    return cell
