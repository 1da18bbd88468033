"""Screens to read: a trial, the run's own page, the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from lego.errors import LegoError
from lego.monitor.base import MonitorScreen
from lego.monitor.lines import Line
from lego.monitor.pager import Pager
from lego.monitor.run_lines import HELP, run_lines
from lego.monitor.trial_lines import title, trial_lines
from lego.rundb import views
from lego.rundb.trial_view import gather


class ReadingScreen(MonitorScreen):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "again(1)", "Next match", show=False),
        Binding("N", "again(-1)", "Previous match", show=False),
    ]
    placeholder = "text to go to"
    searched_for = ""

    def compose_body(self) -> ComposeResult:
        yield Pager(id="body")

    def show(self, heading: str, lines: list[Line]) -> None:
        self.title_is(f" {heading}")
        self.query_one("#body", Pager).show(lines)

    def searched(self, text: str) -> None:
        self.searched_for = text
        self.action_again(1)

    def action_again(self, step: int) -> None:
        if self.searched_for:
            found = self.query_one("#body", Pager).search(self.searched_for, step)
            self.status_is(f"“{self.searched_for}”   n next   N previous" if found else f"no “{self.searched_for}”")


class TrialScreen(ReadingScreen):
    """A trial; drawn anew only when something about it was recorded."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "switch('thinking')", "Thinking"),
        Binding("f", "switch('full')", "Fold"),
        Binding("l", "switch('logs')", "Logs"),
    ]

    def __init__(self, trial_id: int) -> None:
        super().__init__()
        self.trial_id = trial_id
        self.options = {"thinking": True, "full": False, "logs": False}
        self._stamp: tuple[Any, ...] | None = None
        self._report: dict[str, Any] = {}
        self._patch: list[Line] = []

    def update_view(self) -> None:
        store = self.monitor.store
        stamp = views.trial_stamp(store, self.trial_id)
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._report = gather(store, self.trial_id)
        except LegoError as error:
            self.show(f"trial {self.trial_id}", [Line(str(error), "bad"), Line(error.hint, "soft")])
            return
        # Reading a submission takes the sandbox's packages, which opening the monitor need not wait for.
        from lego.monitor.patch import patch_lines

        stored = views.submission(store, self.trial_id)
        self._patch = patch_lines(stored, self._originals()) if stored else []
        self._draw()

    def _originals(self) -> Mapping[str, bytes]:
        try:
            return self.monitor.originals(self._report["task"])
        except LegoError as error:
            self.status_is(f"no diff against the original: {error}")
            return {}

    def _draw(self) -> None:
        self.show(title(self._report), trial_lines(self._report, self._patch, **self.options))

    def action_switch(self, option: str) -> None:
        self.options[option] = not self.options[option]
        if self._report:
            self._draw()


class RunScreen(ReadingScreen):
    """What looks wrong, events, policies, images and config."""

    def update_view(self) -> None:
        self.show(f"{self.monitor.name_}: the run", run_lines(self.monitor.store))


class HelpScreen(ReadingScreen):
    def update_view(self) -> None:
        self.show("keys", [Line(row, "title" if row and row[0] != " " else "") for row in HELP.splitlines()])
