# ruff: noqa: UP006, UP035
"""Runs inside the verification container, loaded by whatever pytest runs there: it says what that pytest did.

It is there for what an exit code and a reward file cannot show: a test run that was left half way, tests that were
skipped, a test runner whose parts were exchanged. Standard library only, Python 3.6 and newer; it fails no test run.
"""

import json
import os
import sys
import types
from typing import Any, Dict, Iterator, List, Tuple

_WATCHED = (
    "_pytest.runner",
    "_pytest.reports",
    "_pytest.python",
    "_pytest.main",
    "_pytest.junitxml",
    "_pytest.terminal",
    "_pytest.unittest",
    "pluggy._callers",
    "pluggy._hooks",
    "pluggy._manager",
    "unittest.case",
)
_MOST = 200
_ORDER = ("passed", "xpassed", "xfailed", "skipped", "failed")


def pytest_configure(config: Any) -> None:
    path = os.environ.get("LEGO_WITNESS")
    inner = "PYTEST_CURRENT_TEST" in os.environ or "PYTEST_XDIST_WORKER" in os.environ
    if path and not inner:
        config.pluginmanager.register(_Witness(path, config), "lego-witness")


class _Witness:
    def __init__(self, path: str, config: Any) -> None:
        self._path, self._pid, self._config = path, os.getpid(), config
        self._outcomes: Dict[str, str] = {}
        self._code = _snapshot()
        self._plugins = set(_plugins(config))
        self._say("begun", {})

    def pytest_collection(self) -> None:
        """What is there before the first line of the code under test is what belongs there."""
        self._code, self._plugins = _snapshot(), set(_plugins(self._config))

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = report.outcome
        if getattr(report, "wasxfail", None) is not None:
            outcome = "xpassed" if outcome == "passed" else "xfailed"
        before = self._outcomes.get(report.nodeid, "passed")
        self._outcomes[report.nodeid] = max(before, outcome, key=_ORDER.index)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        by_outcome: Dict[str, List[str]] = {}
        for name, outcome in self._outcomes.items():
            by_outcome.setdefault(outcome, []).append(name)
        code = _snapshot()
        self._say(
            "ended",
            {
                "status": int(exitstatus),
                "counts": {outcome: len(names) for outcome, names in by_outcome.items()},
                "missed": sorted(by_outcome.get("skipped", []) + by_outcome.get("xfailed", []))[:_MOST],
                "patched": sorted(name for name, what in self._code.items() if code.get(name) != what)[:_MOST],
                "plugins": sorted(set(_plugins(self._config)) - self._plugins)[:_MOST],
            },
        )

    def _say(self, kind: str, what: Dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            return
        try:
            with open(self._path, "a") as file:
                file.write(json.dumps([self._pid, kind, what]) + "\n")
        except OSError:
            pass


def _plugins(config: Any) -> Iterator[str]:
    """Plug-ins by name; those without one of their own by what they are."""
    for name, plugin in config.pluginmanager.list_name_plugin():
        if plugin is not None and not str(name).endswith("conftest.py"):
            yield type(plugin).__name__ if str(name).isdigit() else str(name)


def _snapshot() -> Dict[str, Tuple[int, int]]:
    """The functions of the test runner, by name, as the code that each one runs."""
    found: Dict[str, Tuple[int, int]] = {}
    for module in _WATCHED:
        for name, value in list(vars(sys.modules.get(module, object)).items()):
            if isinstance(value, type) and value.__module__ == module:
                for part, inner in list(vars(value).items()):
                    _note(found, f"{module}.{name}.{part}", inner)
            else:
                _note(found, f"{module}.{name}", value)
    return found


def _note(found: Dict[str, Tuple[int, int]], name: str, value: Any) -> None:
    # No attribute is asked of what may make one up: pytest.mark warns of unknown names, and a warning may be an error.
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    if isinstance(value, types.FunctionType):
        found[name] = (id(value), id(value.__code__))
