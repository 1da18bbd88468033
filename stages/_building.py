"""Image builds as they go: on a terminal what is built now, with its last log line; elsewhere plain lines."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from lego.errors import ImageError
from lego.images.build import ImageEvent, ImageResult, OnEvent
from lego.images.command import last_line
from lego.plain import one_line
from stages._common import progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_WORDS = {"look": "looking", "wait": "another process builds it"}
_NARROW = 64
"""Columns below which the bar and the kinds of images are left out."""


async def build_with_progress(
    build: Callable[[OnEvent], Coroutine[None, None, list[ImageResult]]], *, plain: bool = False
) -> list[ImageResult]:
    """Run a build and show it on standard error. `plain`: lines, also on a terminal."""
    show = _lines if plain or not sys.stderr.isatty() else live
    with show(sys.stderr) as on_event:
        return await build(on_event)


@contextmanager
def _lines(out: TextIO) -> Iterator[OnEvent]:
    with progress("images", passing=True, stream=out, plain=True) as bar:
        works = Works()

        def on_event(event: ImageEvent) -> None:
            works.note(event)
            if event.result is not None and event.result.status == "failed":
                bar.log(failure(event.result))
            bar.update(works.done, total=works.of, note=works.counted(), detail=works.named())

        yield on_event


@contextmanager
def live(out: TextIO, clock: Callable[[], float] = time.monotonic) -> Iterator[OnEvent]:
    """A view that is drawn anew four times a second and leaves nothing behind but failures."""
    from rich.console import Console
    from rich.live import Live

    console = Console(file=out)
    works = Works(clock)
    with Live(View(works), console=console, refresh_per_second=4, transient=True) as shown:

        def on_event(event: ImageEvent) -> None:
            works.note(event)
            if event.result is not None and event.result.status == "failed":
                shown.console.print(failure(event.result), markup=False, highlight=False, soft_wrap=True)

        yield on_event


def failure(result: ImageResult) -> str:
    """What failed, why, and where its log is, in two lines."""
    return f" {result.kind} image {result.name} failed: {one_line(result.reason)}\n   log: {result.log_path}"


def refuse_failed(results: Sequence[ImageResult]) -> None:
    """Raises ImageError for the first image that failed, where it was not a task's own recipe that is at fault."""
    for result in results:
        if result.status == "failed" and result.fault != "task":
            raise ImageError(
                f"the {result.kind} image {result.name} failed: {result.reason}", hint=f"log: {result.log_path}"
            )


@dataclass
class Work:
    """An image in hand: what it is, since when, how far."""

    kind: str
    name: str
    began: float
    log_path: Path
    stage: str

    def doing(self) -> str:
        """The last thing its log says; before there is one, what is waited for."""
        if self.stage != "build":
            return _WORDS[self.stage]
        try:
            return last_line(self.log_path)
        except OSError:
            return ""


class Works:
    """What the events of a build add up to; read by the thread that draws."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self.of: int | None = None
        self.ended: Counter[str] = Counter()
        self._now: dict[Path, Work] = {}

    def note(self, event: ImageEvent) -> None:
        self.of = event.of
        if event.result is not None:
            self._now.pop(event.log_path, None)
            self.ended[event.result.status] += 1
        elif event.log_path in self._now:
            self._now[event.log_path].stage = event.stage
        else:
            work = Work(event.job.kind, one_line(event.job.name), self.clock(), event.log_path, event.stage)
            self._now[event.log_path] = work

    @property
    def done(self) -> int:
        return sum(self.ended.values())

    @property
    def now(self) -> list[Work]:
        return list(self._now.values())

    def counted(self) -> str:
        """built 3 · cached 9 · failed 0"""
        return " · ".join(f"{status} {self.ended[status]}" for status in ("built", "cached", "failed"))

    def named(self) -> str:
        """The first images in hand, and how many more there are."""
        names = [work.name for work in self.now]
        return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


class View:
    """A line of counts, and one for each image in hand, cut to the terminal's width and height."""

    def __init__(self, works: Works) -> None:
        self._works = works

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        works = self._works.now
        rows = max(1, console.height - 3)
        yield self._head(options.max_width)
        yield self._table(works[:rows], options.max_width)
        if len(works) > rows:
            yield f" … and {len(works) - rows} more"

    def _head(self, width: int) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        works, head = self._works, Table.grid(padding=(0, 1))
        of = "?" if works.of is None else str(works.of)
        counts = Text(works.counted(), no_wrap=True, overflow="ellipsis")
        if works.ended["failed"]:
            counts.highlight_regex(r"failed \d+", "bold red")
        cells = [Text(f"{works.done}/{of}"), counts, Text(_clock(works.clock() - works.began))]
        if width >= _NARROW:
            bar = ProgressBar(total=works.of or 1, completed=works.done, width=16)
            cells = [Text(" images"), bar, *cells]  # type: ignore[list-item]
        head.add_row(*cells)
        return head

    def _table(self, works: list[Work], width: int) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table.grid(padding=(0, 1), expand=True)
        if wide := width >= _NARROW:
            table.add_column(width=8, no_wrap=True)
        table.add_column(max_width=max(10, min(32, width // 4)), no_wrap=True, overflow="ellipsis")
        table.add_column(justify="right", no_wrap=True)
        table.add_column(ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
        for work in works:
            took = _clock(self._works.clock() - work.began)
            table.add_row(*([f" {work.kind}"] if wide else []), Text(work.name), took, Text(work.doing()))
        return table


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
