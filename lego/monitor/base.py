"""What every screen of the monitor shares: a search line, a status line, the keys at the foot, going back."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Footer, Input, Static

from lego.plain import one_line

if TYPE_CHECKING:
    from lego.monitor.app import MonitorApp


class SearchLine(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "submit", "Search")]


class MonitorScreen(Screen[None]):
    """A screen below a title line. `update_view` draws it anew from the database; the app calls it on changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "search", "Search", key_display="/"),
        Binding("escape", "back", "Back"),
        Binding("q", "back", "Back", show=False),
    ]
    body = "#body"
    """What the screen is about: it has the keys when nothing else does."""
    placeholder = "search"

    @property
    def monitor(self) -> MonitorApp:
        return cast("MonitorApp", self.app)

    def compose(self) -> ComposeResult:
        yield Static(id="title", markup=False)
        yield from self.compose_body()
        yield Static(id="status", markup=False)
        yield SearchLine(id="search", placeholder=self.placeholder)
        yield Footer(show_command_palette=False)

    def compose_body(self) -> ComposeResult:
        raise NotImplementedError

    def update_view(self) -> None:
        raise NotImplementedError

    def on_mount(self) -> None:
        self.query_one(self.body).focus()

    def on_screen_resume(self) -> None:
        # When it has been laid out: sizes are known only then.
        self.call_after_refresh(self.update_view)

    def title_is(self, text: str, look: str = "bold") -> None:
        self.query_one("#title", Static).update(Text(text, style=look))

    def status_is(self, text: str) -> None:
        self.query_one("#status", Static).update(Text(one_line(text)))

    def action_back(self) -> None:
        if not self._close_search():
            self.leave()

    def leave(self) -> None:
        self.app.pop_screen()

    def action_search(self) -> None:
        field = self.query_one("#search", Input)
        field.add_class("open")
        field.focus()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """At the foot, only what a key does now: while a search is typed, its own two."""
        return action in ("submit", "back") or not self.query("#search.open")

    def _close_search(self) -> bool:
        """Whether the search line was open."""
        field = self.query_one("#search", Input)
        was_open = field.has_class("open")
        field.remove_class("open")
        self.query_one(self.body).focus()
        self.refresh_bindings()
        return was_open

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_search()
        self.searched(event.value)

    def searched(self, text: str) -> None:
        raise NotImplementedError
