"""Pinned recipes: how the environment of a SWE-bench row is made from a package index, one JSON object a line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lego.errors import TaskError
from lego.tasks import swebench_rows as rows
from lego.tasks.reading import OnProblem, raised

_TEXTS = ("sdist", "sdist_file", "sdist_sha256", "python", "install", "test_cmd")
_LISTS = ("pip_packages", "test_files")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Recipe:
    """A recipe, its fields as docs/swebench.md has them. `excluded`: tests that do not pass with the fix in it."""

    sdist: str
    sdist_file: str
    sdist_sha256: str
    python: str
    install: str
    test_cmd: str
    pip_packages: tuple[str, ...]
    test_files: tuple[str, ...]
    excluded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Line:
    """A recipe as it stands in its file, not looked into yet; `where` names the line."""

    raw: Mapping[str, Any]
    where: str


def read(path: Path, on_problem: OnProblem = raised) -> dict[str, Line]:
    """The lines of a recipes file by the instance that each is for.

    A line that is no JSON or names no instance, and a second one for the same instance, are told to `on_problem`, which
    raises the TaskError unless something else is asked for. Raises TaskError where the file cannot be read.
    """
    found: dict[str, Line] = {}
    for where, raw in rows.read(path, on_problem):
        name = raw.get("instance_id")
        if not isinstance(name, str) or not name:
            on_problem(TaskError(f"{where}: a recipe needs an instance_id", fault="user"))
        elif name in found:
            first = found[name].where
            on_problem(TaskError(f"{where}: a second recipe for {name}; the first is {first}", fault="user"))
        else:
            found[name] = Line(raw, where)
    return found


def parse(line: Line) -> Recipe:
    """Raises TaskError naming the line, and every field of it that is missing or something else than it should be."""
    raw = line.raw
    wrong = [f"{key} must be a text" for key in _TEXTS if not (isinstance(raw.get(key), str) and raw[key])]
    wrong += [f"{key} must be a list of texts" for key in _LISTS if not _is_texts(raw.get(key))]
    wrong += [] if _is_texts(raw.get("excluded_p2p", [])) else ["excluded_p2p must be a list of texts"]
    if not wrong and not _SHA256.fullmatch(raw["sdist_sha256"]):
        wrong.append("sdist_sha256 must be 64 hexadecimal digits")
    if wrong:
        raise TaskError(f"{line.where}: not a recipe: {', '.join(wrong)}")
    return Recipe(
        **{key: raw[key] for key in _TEXTS},
        pip_packages=tuple(raw["pip_packages"]),
        test_files=tuple(raw["test_files"]),
        excluded=tuple(raw.get("excluded_p2p", [])),
    )


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
