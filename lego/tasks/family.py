"""Generated tasks: a family makes as many as asked for, each decided by the family's name, a seed and a number."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lego.config.schema import TaskSource
from lego.errors import ConfigError, TaskError
from lego.tasks import comparisons, off_by_one
from lego.tasks.task import Task

_DRAWS = 100


@dataclass(frozen=True)
class Family:
    """`options` is a dataclass of numbers and texts with defaults; `make` draws one task, its id left empty."""

    options: type[Any]
    make: Callable[[random.Random, Any], Task]


FAMILIES: Mapping[str, Family] = {
    "off-by-one": Family(off_by_one.Options, off_by_one.make),
    "comparisons": Family(comparisons.Options, comparisons.make),
}


def generate(source: TaskSource, avoid: Container[str] = frozenset()) -> list[Task]:
    """`source.count` tasks with distinct content, none whose digest is in `avoid`; the same for the same source.

    Asking for more keeps the first ones. Raises ConfigError for an unknown family or option, TaskError where the
    family has not that many different tasks.
    """
    family = FAMILIES.get(source.name)
    if family is None:
        raise ConfigError(f"no task family is named {source.name!r}", hint=f"families: {', '.join(sorted(FAMILIES))}")
    if source.count < 1:
        raise ConfigError(f"family {source.name}: count must be at least 1, not {source.count}")
    options = _read_options(source, family.options)
    seen: set[str] = set()
    tasks: list[Task] = []
    for number in range(source.count):
        task = _draw(family, source, number, options, seen, avoid)
        seen.add(task.digest)
        tasks.append(task)
    return tasks


def _draw(family: Family, source: TaskSource, number: int, options: Any, seen: set[str], avoid: Container[str]) -> Task:
    for draw in range(_DRAWS):
        task = family.make(random.Random(f"{source.name}/{source.seed}/{number}/{draw}"), options)
        digest = task.content_digest()
        if digest not in seen and digest not in avoid:
            where = f"family {source.name}, seed {source.seed}, number {number}"
            return replace(task, id=f"{source.name}-{source.seed}-{number:04d}", digest=digest, where=where)
    raise TaskError(
        f"family {source.name}: no task number {number} that differs from the others",
        hint="ask for fewer tasks, or widen the family's options",
        fault="user",
    )


def _read_options(source: TaskSource, kind: type[Any]) -> Any:
    known = {f.name: f for f in fields(kind)}
    values = {}
    for name, value in source.options.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            advice = f"did you mean {near[0]}?" if near else f"options: {', '.join(known)}"
            raise ConfigError(f"family {source.name}: no such option: {name}", hint=advice)
        wanted: type[Any] = type(known[name].default)
        fits = type(value) is wanted or (wanted is float and type(value) is int)
        if not fits:
            raise ConfigError(f"family {source.name}: option {name} must be a {wanted.__name__}, not {value!r}")
        values[name] = wanted(value)
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(f"family {source.name}: {error}") from error
