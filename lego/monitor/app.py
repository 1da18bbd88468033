"""`lego monitor`: a run as it goes, from its database alone. Reads only."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import ClassVar

from textual.app import App
from textual.binding import Binding, BindingType

from lego.errors import LegoError
from lego.monitor.base import MonitorScreen
from lego.monitor.curves import CurvesScreen
from lego.monitor.feed import Feed, Snapshot
from lego.monitor.grid import GridScreen
from lego.monitor.overview import Overview
from lego.monitor.reading import HelpScreen, RunScreen, TrialScreen
from lego.rundb.store import Store

Originals = Callable[[str], Mapping[str, bytes]]
"""Task id -> absolute path -> content, of the files that are known to have been there before the agent."""

EVERY = 1.0
"""Seconds between two looks at whether anything was written."""

REST = 30.0
"""A refresh comes no sooner than this many times the CPU that the last one cost: the machine belongs to the run."""


class MonitorApp(App[None]):
    # Terminal colours alone, and reverse video for the cursor: right on any background, and without colour.
    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #title, #status, #stages { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #status { text-style: dim; }
    #stages { height: 2; }
    #search { display: none; height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    #search.open { display: block; }
    #search:focus { border: none; background-tint: ansi_default 0%; }
    Horizontal { height: 1fr; }
    PlainTable { height: 1fr; background: ansi_default; color: ansi_default; scrollbar-size-vertical: 1; }
    PlainTable { overflow-x: hidden; }
    PlainTable:focus { background-tint: ansi_default 0%; }
    #rounds { border-right: solid ansi_default; }
    PlainTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
    PlainTable > .datatable--cursor, PlainTable:focus > .datatable--cursor {
        background: ansi_default; color: ansi_default; text-style: reverse;
    }
    PlainTable:blur > .datatable--cursor { text-style: underline; }
    PlainTable > .datatable--hover { background: ansi_default; }
    CurvesScreen PlainTable { width: 35; border-right: solid ansi_default; }
    Pager { height: 1fr; background: ansi_default; color: ansi_default; padding: 0 1; scrollbar-size-vertical: 1;
        overflow-x: hidden; overflow-y: scroll; }
    #curve { padding-left: 1; }
    Footer { background: ansi_default; color: ansi_default; }
    FooterKey, FooterKey .footer-key--key, FooterKey .footer-key--description {
        background: ansi_default; color: ansi_default;
    }
    FooterKey .footer-key--key { text-style: bold; }
    ChoiceScreen { align: center middle; background: ansi_default; }
    ChoiceScreen Vertical { width: 52; height: auto; max-height: 90%; border: solid ansi_default; padding: 0 1; }
    ChoiceScreen PlainTable { max-height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "Help", show=False),
        Binding("ctrl+q,ctrl+c", "quit", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, store: Store, name: str, *, wanted: int = 0, originals: Originals | None = None) -> None:
        """store: read only. wanted: the rounds the config asks for."""
        super().__init__(ansi_color=True)
        self.store = store
        self.name_ = name
        self.wanted = wanted
        self.originals: Originals = originals or (lambda task: {})
        self.feed = Feed(store)
        self.snapshot = Snapshot()
        self.trouble = ""
        self.cpu: Callable[[], float] = time.process_time
        self._due = 0.0

    def on_mount(self) -> None:
        self.theme = "ansi-dark"
        self.snapshot = self.feed.refresh()
        self.push_screen(Overview())
        self.set_interval(EVERY, self.tick)

    def tick(self) -> None:
        """Look once; read again only if something was written and the last reading was long enough ago."""
        at = self.feed.clock()
        try:
            if at >= self._due and self.feed.changed():
                began = self.cpu()
                self.refresh_run()
                self._rest(at, began)
                # Drawing it costs as well.
                self.screen.call_after_refresh(self._rest, at, began)
                return
            self.trouble = ""
        except LegoError as error:
            self.trouble = f"! {error}"
        if isinstance(self.screen, Overview):
            self.screen.update_head()

    def _rest(self, at: float, began: float) -> None:
        self._due = at + (self.cpu() - began) * REST

    def refresh_run(self) -> None:
        self.snapshot = self.feed.refresh()
        if isinstance(self.screen, MonitorScreen):
            self.screen.update_view()

    def open_trial(self, trial_id: int) -> None:
        self.push_screen(TrialScreen(trial_id))

    def show_cell(self, round_id: int, task: str) -> None:
        self.pop_screen()
        if isinstance(self.screen, Overview):
            self.screen.show_cell(round_id, task)

    def action_grid(self) -> None:
        self.push_screen(GridScreen())

    def action_curves(self) -> None:
        self.push_screen(CurvesScreen())

    def action_run(self) -> None:
        self.push_screen(RunScreen())

    async def action_help(self) -> None:
        if not isinstance(self.screen, HelpScreen):
            self.push_screen(HelpScreen())
