"""How a project is laid out: which files are its tests, which its sources, and how it wants pytest to run."""

from __future__ import annotations

import configparser
import fnmatch
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lego.inject.source import Project
from lego.tasks.task import Tree

_TEST_FOLDERS = frozenset(("test", "tests"))
_NOT_SOURCES = frozenset(("docs", "doc", "examples", "example", "benchmark", "benchmarks", "tools", "scripts"))
_NOT_SOURCE_FILES = frozenset(("setup.py", "noxfile.py", "conftest.py", "tasks.py", "fabfile.py", "versioneer.py"))
_TEST_GROUPS = ("test", "tests", "testing")
# What decides which tests there are and whether they pass; options that report, measure or need a plug-in are not.
_KEPT_KEYS = (
    "filterwarnings", "markers", "xfail_strict", "python_files", "python_classes", "python_functions", "norecursedirs",
    "pythonpath", "asyncio_mode", "usefixtures",
)  # fmt: skip
_KEPT_OPTIONS = re.compile(r"-m|-k|--import-mode(=.*)?")
_NEVER_NEEDED = re.compile(
    r"(pytest|pytest-(cov|xdist|randomly|sugar|benchmark)|coverage|tox.*|mypy|ruff|flake8)$", re.I
)


@dataclass(frozen=True)
class Layout:
    """`tests` are the files given to pytest, `suite` all that belongs to the tests (helpers, data, conftest.py),
    `sources` what bugs may be put into. `settings` is a pytest.ini. `requirements` are what the tests need beside
    pytest and the project's own dependencies; `installable` says whether pip can install the project."""

    tests: tuple[str, ...]
    suite: tuple[str, ...]
    sources: tuple[str, ...]
    settings: str
    requirements: tuple[str, ...]
    installable: bool


def read(project: Project, extra: tuple[str, ...] = ()) -> Layout:
    """The layout of a project; `extra` are requirements that a person named."""
    options = _pytest_options(project.tree)
    patterns = _words(options.get("python_files")) or ["test_*.py", "*_test.py"]
    pyproject = _toml(project.tree, "pyproject.toml")
    suite, tests, sources = [], [], []
    for path in project.tree:
        where = PurePosixPath(path)
        in_tests = bool(_TEST_FOLDERS.intersection(where.parts[:-1]))
        is_test = any(fnmatch.fnmatch(where.name, pattern) for pattern in patterns)
        outside = bool(_NOT_SOURCES.intersection(where.parts[:-1]))
        if is_test and where.suffix == ".py" and not outside:
            tests.append(path)
        if in_tests or where.name == "conftest.py" or (is_test and not outside):
            suite.append(path)
        elif where.suffix == ".py" and not outside and where.name not in _NOT_SOURCE_FILES:
            sources.append(path)
    installable = "setup.py" in project.tree or bool({"project", "build-system"} & pyproject.keys())
    return Layout(
        tuple(tests), tuple(suite), tuple(sources), _settings(options), (*_test_requirements(pyproject), *extra),
        installable,
    )  # fmt: skip


def _pytest_options(tree: Tree) -> Mapping[str, Any]:
    """The project's pytest settings, from the first file that pytest itself would take."""
    for name in ("pytest.toml", ".pytest.toml"):
        if name in tree:
            return _table(_toml(tree, name), "pytest")
    for name, section in (("pytest.ini", "pytest"), (".pytest.ini", "pytest")):
        if name in tree:
            return _ini(tree, name, section)
    table = _table(_table(_toml(tree, "pyproject.toml"), "tool"), "pytest")
    if table:
        return _table(table, "ini_options") if "ini_options" in table else table
    return _ini(tree, "tox.ini", "pytest") or _ini(tree, "setup.cfg", "tool:pytest")


def _settings(options: Mapping[str, Any]) -> str:
    lines = ["[pytest]"]
    for key in _KEPT_KEYS:
        if key in options:
            value = options[key]
            text = "\n    ".join(map(str, value)) if isinstance(value, list) else str(value)
            lines.append(f"{key} = {text.strip()}" if "\n" not in text else f"{key} =\n    {text.strip()}")
    if kept := shlex.join(_options_kept(_words(options.get("addopts")))):
        lines.append(f"addopts = {kept}")
    return "\n".join(lines) + "\n"


def _options_kept(words: list[str]) -> Iterator[str]:
    takes_next = False
    for word in words:
        if takes_next:
            yield word
            takes_next = False
        elif _KEPT_OPTIONS.fullmatch(word):
            yield word
            takes_next = word in ("-m", "-k", "--import-mode")


def _test_requirements(pyproject: Mapping[str, Any]) -> Iterator[str]:
    groups = {
        **_table(_table(pyproject, "project"), "optional-dependencies"),
        **_table(pyproject, "dependency-groups"),
    }
    for group in _TEST_GROUPS:
        listed = groups.get(group)
        for one in listed if isinstance(listed, list) else ():
            if isinstance(one, str) and not _NEVER_NEEDED.match(re.split(r"[\s<>=!~\[;@]", one)[0]):
                yield one


def _words(value: Any) -> list[str]:
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(str(value or ""))
    except ValueError:
        return []


def _ini(tree: Tree, name: str, section: str) -> Mapping[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(tree[name].data.decode())
        return dict(parser.items(section))
    except (KeyError, ValueError, configparser.Error):
        return {}


def _toml(tree: Tree, name: str) -> dict[str, Any]:
    try:
        return tomllib.loads(tree[name].data.decode())
    except (KeyError, ValueError, RecursionError):
        return {}


def _table(toml: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of a TOML file; empty where something else stands in its place, which is pip's to complain of."""
    found = toml.get(name)
    return found if isinstance(found, dict) else {}
