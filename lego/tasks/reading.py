"""Reading what a person wrote: whatever is wrong with it is one TaskError, whose line says where."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lego.errors import Fault, LegoError, TaskError
from lego.plain import one_line

OnProblem = Callable[[LegoError], None]
"""Hears of each thing that is wrong where all of them are to be told."""

UNFORESEEN = "cannot be made a task"
_LONGEST = 300
_LONGEST_LINE = 2000


@contextmanager
def guarded(where: object) -> Iterator[None]:
    """Whatever goes wrong in the block is a TaskError that begins with `where`. A LegoError stays what it is; what it
    quotes is put on its one line, and cut where nobody would read it to the end.

    For what has no words of its own: files of other people's making come in more shapes than anyone thinks of.
    """
    try:
        yield
    except LegoError as error:
        line = one_line(error.message)
        error.message = line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"
        raise
    except Exception as error:
        raise TaskError(f"{where}: {UNFORESEEN}: {in_short(error)}") from error


def raised(error: LegoError) -> None:
    """An OnProblem for who wants to hear of the first alone: it raises it."""
    raise error


def in_short(error: BaseException) -> str:
    """An exception's kind and first words, on one line."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    said = one_line(str(error))[:_LONGEST]
    kind = "" if isinstance(error, OSError) and error.strerror else type(error).__name__
    return ": ".join(part for part in (kind, said) if part)


def text_of(path: Path, *, fault: Fault | None = None) -> str:
    """A file's text. Raises TaskError where it cannot be read, or is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TaskError(f"{one_line(str(path))}: cannot be read: {why}", fault=fault) from error


def json_of(text: str | bytes, where: object, *, fault: Fault | None = None) -> Any:
    """JSON whose values can be given to programs (`check_plain`). Raises TaskError."""
    return _parsed(lambda: json.loads(text), "JSON", where, fault)


def toml_of(text: str, where: object, *, fault: Fault | None = None) -> dict[str, Any]:
    """TOML whose values can be given to programs (`check_plain`). Raises TaskError."""
    found: dict[str, Any] = _parsed(lambda: tomllib.loads(text), "TOML", where, fault)
    return found


def _parsed(parse: Callable[[], Any], kind: str, where: object, fault: Fault | None) -> Any:
    try:
        value = parse()
    except ValueError as error:
        raise TaskError(f"{where}: not valid {kind}: {one_line(str(error))[:_LONGEST]}", fault=fault) from error
    except RecursionError:
        raise TaskError(f"{where}: not valid {kind}: it is nested too deeply", fault=fault) from None
    check_plain(value, where, fault=fault)
    return value


def check_plain(value: Any, where: object, *, fault: Fault | None = None) -> None:
    """Raises TaskError for what no program can be given, at any depth: a text with a character 0, or with half a pair
    of surrogates, which UTF-8 has no bytes for; a whole number beyond 64 bits."""
    left: list[tuple[str, Any]] = [("", value)]
    seen: set[int] = set()  # YAML can write what holds itself
    while left:
        place, one = left.pop()
        what = ""
        if isinstance(one, dict | list | tuple):
            if id(one) in seen:
                continue
            seen.add(id(one))
        if isinstance(one, str):
            halves = any("\ud800" <= char <= "\udfff" for char in one)
            what = "a text with a character 0" if "\0" in one else "a text with half a character" if halves else ""
        elif isinstance(one, int):
            what = "a number beyond 64 bits" if not -(2**63) <= one < 2**63 else ""
        elif isinstance(one, dict):
            for key, inner in one.items():
                left += [(place, key), (f"{place}.{key}" if place else str(key), inner)]
        elif isinstance(one, list | tuple):
            left += [(f"{place}.{number}" if place else str(number), inner) for number, inner in enumerate(one)]
        if what:
            raise TaskError(f"{where}: {f'{one_line(place)[:_LONGEST]}: ' if place else ''}{what}", fault=fault)
