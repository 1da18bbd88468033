"""The first screen: where the run stands, its rounds, the trials of the chosen round."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import DataTable, Static

from lego.monitor.base import MonitorScreen
from lego.monitor.choice import ChoiceScreen
from lego.monitor.head import compact, head, label
from lego.monitor.tables import Column, PlainTable, Row
from lego.rundb import views
from lego.rundb.store import Row as Stored
from lego.rundb.views import STATES, Page, RoundView, TrialQuery

PAGE = 100
ALL = "all"
_ROUND_COLUMNS = (Column("round", 9), Column("done", 4, True), Column("slvd", 4, True))
_ROUNDS_WIDTH = sum(column.width or 0 for column in _ROUND_COLUMNS) + len(_ROUND_COLUMNS) + 1


class Overview(MonitorScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "filter", "Filter"),
        Binding("g", "app.grid", "Grid"),
        Binding("c", "app.curves", "Curves"),
        Binding("i", "app.run", "Run"),
        Binding("question_mark", "app.help", "Help", key_display="?"),
        Binding("q", "app.quit", "Quit"),
        Binding("escape", "back", "All"),
        Binding("right_square_bracket", "round(-1)", show=False),
        Binding("left_square_bracket", "round(1)", show=False),
        Binding("a", "all_rounds", show=False),
    ]
    body = "#trials"
    placeholder = "part of a task, harness, ending or reason; or a trial's number"

    def __init__(self) -> None:
        super().__init__()
        self.query_: TrialQuery = TrialQuery()
        self.page = Page([], False, False, None)
        self._chosen: int | None = None
        self._follow = True
        self._head: list[str] = []

    def compose_body(self) -> ComposeResult:
        yield Static(id="stages", markup=False)
        with Horizontal():
            yield PlainTable(id="rounds")
            yield PlainTable(id="trials")

    def on_mount(self) -> None:
        self.query_one("#rounds").styles.width = _ROUNDS_WIDTH
        super().on_mount()

    def on_resize(self) -> None:
        self.call_after_refresh(self.update_view)

    def update_view(self) -> None:
        snapshot = self.monitor.snapshot
        current = snapshot.current
        if self._follow:
            self._chosen = current.id if current else None
            self.query_ = replace(self.query_, round_id=self._chosen)
        self.update_head()
        rows = [_round_row(round_) for round_ in reversed(snapshot.rounds)]
        rows.append(Row(ALL, ("all", "", "")))
        chosen = ALL if self._chosen is None else str(self._chosen)
        with self.prevent(PlainTable.RowHighlighted):
            self.query_one("#rounds", PlainTable).lay(_ROUND_COLUMNS, rows, _ROUNDS_WIDTH, at=chosen)
        self._show(views.trials_page(self.monitor.store, self.query_, anchor=self.page.before, limit=PAGE))

    def update_head(self) -> None:
        """The lines at the top, which also change when a process ends without a word."""
        monitor = self.monitor
        lines = head(monitor.name_, monitor.wanted, monitor.snapshot, self.size.width, monitor.feed.clock())
        if lines == self._head:
            return
        self._head = lines
        self.title_is(lines[0])
        self.query_one("#stages", Static).update(Text("\n".join(lines[1:])))

    def _show(self, page: Page, at: int | None = None) -> None:
        if not page.rows and page.before is not None:
            page = views.trials_page(self.monitor.store, self.query_, limit=PAGE)
        self.page = page
        table = self.query_one("#trials", PlainTable)
        width = self.size.width - _ROUNDS_WIDTH - 1
        wide = width >= 78
        columns = [Column("#", 5, True), Column("task", 34 if wide else 16, name=True), Column("s", 2, True)]
        columns += [Column("harness", 12)] if wide else []
        columns += [Column("state", 8), Column("trn", 3, True), Column("tok", 5, True), Column("rwd", 4, True)]
        columns.append(Column("why", None))
        with self.prevent(PlainTable.RowHighlighted):
            table.lay(columns, [_trial_row(row, wide) for row in page.rows], width, at=at)
        self._tell()

    def _tell(self) -> None:
        query, page = self.query_, self.page
        which = [query.state] if query.state != "all" else []
        which += [f"task {query.task}"] if query.task else []
        which += [f"“{query.text}”"] if query.text else []
        more = {(True, True): "more above and below", (True, False): "more above", (False, True): "more below"}
        count = f"{len(page.rows)} trials" if page.rows else "no trial"
        parts = [f"{count}{', ' + more[page.above, page.below] if page.above or page.below else ''}"]
        parts += [f"only {', '.join(which)} (esc: all)"] if which else []
        key = self.query_one("#trials", PlainTable).key_at_cursor
        row = next((row for row in page.rows if str(row["id"]) == key), None)
        # The column may be too narrow for it.
        parts += [f"{row['id']}: {_why(row)}"] if row else []
        self.status_is(" · ".join(part for part in (self.monitor.trouble, *parts) if part))

    # Moving about.

    def on_plain_table_wanted(self, event: PlainTable.Wanted) -> None:
        if event.table.id != "trials":
            return
        page, store = self.page, self.monitor.store
        if event.where == "below" and page.below:
            last = page.rows[-1]
            anchor = (last["status"], last["id"])
            self._show(views.trials_page(store, self.query_, anchor=anchor, limit=PAGE), at=0)
        elif event.where == "above" and page.above:
            first = page.rows[0]
            above = views.trials_page(store, self.query_, anchor=(first["status"], first["id"]), way="up", limit=PAGE)
            self._show(above, at=len(above.rows) - 1)
        elif event.where == "first" and page.above:
            self._show(views.trials_page(store, self.query_, limit=PAGE), at=0)
        elif event.where == "last" and page.below:
            last_page = views.trials_page(store, self.query_, way="up", limit=PAGE)
            self._show(last_page, at=len(last_page.rows) - 1)

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        if event.data_table.id == "trials":
            self._tell()
        elif event.data_table.has_focus and event.row_key.value is not None:
            self._choose(None if event.row_key.value == ALL else int(event.row_key.value))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.data_table.id == "rounds":
            self.query_one("#trials").focus()
        elif event.row_key.value is not None:
            self.monitor.open_trial(int(event.row_key.value))

    def _choose(self, round_id: int | None) -> None:
        if round_id == self._chosen:
            return
        current = self.monitor.snapshot.current
        self._chosen, self._follow = round_id, current is not None and round_id == current.id
        self._ask(replace(self.query_, round_id=round_id))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "back" and self.query_ == TrialQuery(round_id=self._chosen):
            return bool(self.query("#search.open"))
        return super().check_action(action, parameters)

    def _ask(self, query: TrialQuery) -> None:
        self.query_ = query
        self.refresh_bindings()
        self._show(views.trials_page(self.monitor.store, query, limit=PAGE), at=0)

    def show_cell(self, round_id: int, task: str) -> None:
        """The trials of one cell of the task grid."""
        self._chosen, self._follow = round_id, False
        self.page = Page([], False, False, None)
        self.query_ = TrialQuery(round_id=round_id, task=task)
        self.refresh_bindings()
        self.update_view()

    def action_round(self, step: int) -> None:
        keys = [*(str(round_.id) for round_ in reversed(self.monitor.snapshot.rounds)), ALL]
        at = keys.index(ALL if self._chosen is None else str(self._chosen)) + step
        if 0 <= at < len(keys):
            self._choose(None if keys[at] == ALL else int(keys[at]))
            self.query_one("#rounds", PlainTable).move_cursor(row=at, animate=False)

    def action_all_rounds(self) -> None:
        self._choose(None)
        self.query_one("#rounds", PlainTable).move_cursor(row=len(self.monitor.snapshot.rounds), animate=False)

    def action_filter(self) -> None:
        def chosen(state: str | None) -> None:
            if state is not None:
                self._ask(replace(self.query_, state=state))

        self.app.push_screen(ChoiceScreen("show trials that are", list(STATES), self.query_.state), chosen)

    def searched(self, text: str) -> None:
        if text.isdigit():
            self.monitor.open_trial(int(text))
        else:
            self._ask(replace(self.query_, text=text))

    def leave(self) -> None:
        self._ask(TrialQuery(round_id=self._chosen))


def _round_row(round_: RoundView) -> Row:
    percent = 100 * round_.done // round_.slots if round_.slots else 0
    done = f"{percent}%" if round_.open else "✓"
    rate = "–" if round_.rate is None else f"{round_.rate:.2f}".removeprefix("0")
    return Row(str(round_.id), (("▶" if round_.open else " ") + label(round_), done, rate))


def _trial_row(row: Stored, wide: bool) -> Row:
    reward = "–" if row["reward"] is None else f"{row['reward']:.2g}"
    cells = [str(row["id"]), row["task_id"], str(row["sample"])]
    cells += [row["harness"]] if wide else []
    cells += [row["status"], str(row["turns"]), compact(row["sampled"]), reward, _why(row)]
    tampered = _tampered(row)
    good = row["reward"] == 1.0 and not tampered
    look = "yellow" if tampered or row["fault"] else "green" if good else "bold" if row["status"] == "running" else ""
    return Row(str(row["id"]), cells, look)


def _tampered(row: Stored) -> bool:
    return row["tamper"] not in (None, "[]")


def _why(row: Stored) -> str:
    """Why a trial's reward is what it is, or why it has none; the shortest words first."""
    if row["fault"]:
        parts = [f"{row['fault']}: {row['reason']}"]
    else:
        ending = row["ending"] if row["ending"] != "exit" else ""
        parts = ["tamper" if _tampered(row) else "", row["said"] or row["outcome"] or "", ending]
    if row["attempt"] > 1:
        parts.append(f"attempt {row['attempt']}")
    return ", ".join(part for part in parts if part) or "–"
