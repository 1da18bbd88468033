"""What every command shares: the config options, output for machines, and progress."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO, TypeVar

import click

from lego.errors import ConfigError

if TYPE_CHECKING:
    from lego.config.load import Loaded

DEFAULT_CONFIG = "lego.yaml"

_F = TypeVar("_F", bound=Callable[..., Any])


def config_options(function: _F) -> _F:
    """Gives a command -c/--config, trailing key=value overrides and --json.

    The function is called with `loaded` (a checked `Loaded`) and `as_json` (bool). Arguments of the command's own
    stand above this decorator and come before the overrides.
    """
    return json_option(with_config(function))


def optional_config_options(function: _F) -> _F:
    """Like `config_options`, for a command that can do without: `loaded` is None where there is no config."""
    return json_option(with_config(function, required=False))


def json_option(function: _F) -> _F:
    """Gives a command --json, as the parameter `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(function)


def with_config(function: _F, *, required: bool = True) -> _F:
    """Gives a command -c/--config and trailing key=value overrides, as the parameter `loaded`."""
    option = click.option(
        "-c",
        "--config",
        "loaded",
        envvar="LEGO_CONFIG",
        metavar="CONFIG",
        callback=_load if required else _load_if_there,
        help=f"The run's config. [default: $LEGO_CONFIG, else {DEFAULT_CONFIG}]",
    )
    overrides = click.argument(
        "overrides", nargs=-1, metavar="[KEY=VALUE]...", expose_value=False, is_eager=True, callback=_keep_overrides
    )
    return overrides(option(function))


def _keep_overrides(ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> None:
    ctx.meta["lego.overrides"] = value


def overrides_of(ctx: click.Context) -> tuple[str, ...]:
    """The key=value overrides of this command line."""
    given: tuple[str, ...] = ctx.meta["lego.overrides"]
    return given


def _load_if_there(ctx: click.Context, param: click.Parameter, value: str | None) -> Loaded | None:
    return None if value is None and not Path(DEFAULT_CONFIG).exists() else _load(ctx, param, value)


def _load(ctx: click.Context, _param: click.Parameter, value: str | None) -> Loaded | None:
    from lego.config.load import load

    if ctx.resilient_parsing:
        return None
    if value is None and not Path(DEFAULT_CONFIG).exists():
        raise ConfigError("no config given", hint=f"-c CONFIG names one; `lego init` writes {DEFAULT_CONFIG}")
    return load(value or DEFAULT_CONFIG, ctx.meta["lego.overrides"])


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    # An agent may name a file with bytes that are no text; they are escaped, as JSON can.
    click.echo(text if _is_text(text) else json.dumps(value, indent=2))


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Progress(Protocol):
    """Work being counted. Everything shown goes to standard error, so that standard output holds the result alone."""

    def update(self, done: int, *, total: int | None = None, note: str = "", detail: str = "") -> None:
        """`done` of `total`; `note` stands beside the bar ("8 running"), `detail` on a line under it."""

    def advance(self, count: int = 1, *, note: str = "", detail: str = "") -> None:
        """`count` more are done."""

    def log(self, line: str) -> None:
        """A line that stays."""


@contextmanager
def progress(
    title: str,
    total: int | None = None,
    *,
    heading: str = "",
    passing: bool = False,
    plain: bool = False,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere, or if `plain`, lines: one at the start, one each ten seconds in which something
    moved, and one at the end. `total` None means not known yet. A `passing` one leaves nothing behind at its end.
    """
    out = stream or sys.stderr
    if heading:
        print(heading, file=out, flush=True)
    if plain or not out.isatty():
        lines = _Plain(title, total, out, clock)
        yield lines
        if not passing:
            lines.close()
    else:
        with _bar(title, total, out, passing) as bar:
            yield bar


class _Plain:
    EVERY = 10.0

    def __init__(self, title: str, total: int | None, out: TextIO, clock: Callable[[], float]) -> None:
        self._title, self._total, self._out, self._clock = title, total, out, clock
        self._done = 0
        self._note = self._detail = self._shown = ""
        self._next = clock() + self.EVERY

    def update(self, done: int, *, total: int | None = None, note: str = "", detail: str = "") -> None:
        self._done, self._note, self._detail = done, note, detail
        self._total = total if total is not None else self._total
        if self._clock() >= self._next:
            self._show()

    def advance(self, count: int = 1, *, note: str = "", detail: str = "") -> None:
        self.update(self._done + count, note=note, detail=detail)

    def log(self, line: str) -> None:
        print(line, file=self._out, flush=True)

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        self._next = self._clock() + self.EVERY
        of = f"{self._done}/{self._total}" if self._total is not None else str(self._done)
        line = "   ".join(part for part in (f"{self._title} {of}", self._note, self._detail) if part)
        if line != self._shown:
            print(line, file=self._out, flush=True)
        self._shown = line


@contextmanager
def _bar(title: str, total: int | None, out: TextIO, passing: bool) -> Iterator[Progress]:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Task, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            return Text("") if task.time_remaining is None else super().render(task).append(" left")

    console = Console(file=out)
    columns = RichProgress(
        TextColumn(" {task.description}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        Left(),
        console=console,
        auto_refresh=False,
    )
    task = columns.add_task(title, total=total, note="")

    class Bar:
        done = 0

        def update(self, done: int, *, total: int | None = None, note: str = "", detail: str = "") -> None:
            self.done = done
            columns.update(task, completed=done, note=note)
            if total is not None:
                columns.update(task, total=total)
            live.update(Group(columns, Text(f" {detail}")) if detail else columns)

        def advance(self, count: int = 1, *, note: str = "", detail: str = "") -> None:
            self.update(self.done + count, note=note, detail=detail)

        def log(self, line: str) -> None:
            live.console.print(line, markup=False, highlight=False)

    with Live(columns, console=console, refresh_per_second=8, transient=passing) as live:
        yield Bar()
