"""Runs a project's tests with pytest and writes one line of JSON a test to a descriptor.

    run_tests.py < ASK

Brought into the sandbox, by the grader of a task and by the search for bugs alike, so that what was measured is what
is graded. Needs pytest, and coverage where the ask wants it; nothing of the project's own settings is read.
"""

import contextlib
import importlib
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

Ask = dict[str, Any]
DETAIL = 600
"""Characters of one text about a failure."""
SOURCE = 20_000
"""Characters of one test's source."""


WAITING = 4
"""Times the limit of a test that it may take by the clock, so that a busy machine changes nothing."""


class Reporter:
    """A pytest plug-in: keeps the named tests alone, limits each in time, says what became of it."""

    def __init__(self, ask: Ask, tell: Callable[[bytes], None], coverage: Any) -> None:
        self.ask, self.tell, self.dumps, self.coverage = ask, tell, json.dumps, coverage
        self.names = None if ask.get("names") is None else set(ask["names"])
        self.now: dict[str, Any] = {}
        self.homes: dict[str, list[str] | None] = {}
        self.compared: list[str] | None = None
        self.session: Any = None

    def say(self, **record: Any) -> None:
        self.tell(self.dumps(record).encode() + b"\n")

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            text = str(getattr(report.longrepr, "longrepr", report.longrepr))
            errors = [line for line in text.splitlines() if line.startswith("E  ")] or text.splitlines()[-1:]
            self.say(uncollected=report.nodeid, why=errors[-1].removeprefix("E").strip()[:DETAIL] if errors else "")

    def pytest_collection_modifyitems(self, session: Any, config: Any, items: list[Any]) -> None:
        self.session = session
        if self.names is not None:
            left = [item for item in items if item.nodeid not in self.names]
            items[:] = [item for item in items if item.nodeid in self.names]
            config.hook.pytest_deselected(items=left)
        if self.ask.get("detail"):
            for item in items:
                self.homes[item.nodeid] = home(item, self.ask["app"])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.now = {"id": nodeid, "outcome": "passed", "seconds": 0.0}
        self.compared = None
        if self.coverage is not None:
            self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.now["seconds"] = round(self.now["seconds"] + report.duration, 4)
        outcome = self.now["outcome"]
        if report.failed:
            outcome = "failed" if report.when == "call" and outcome != "error" else "error"
        elif outcome == "passed" and hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        elif outcome == "passed" and report.skipped:
            outcome = "skipped"
        self.now["outcome"] = outcome
        if report.failed and "failure" not in self.now and getattr(report, "said", None):
            self.now["failure"] = report.said

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context("")
        if nodeid in self.homes:
            self.now["home"] = self.homes[nodeid]
        self.say(**self.now)
        if self.ask.get("stop_at_limit") and "slow" in self.now:
            self.session.shouldstop = "a test took too long"

    def pytest_assertrepr_compare(self, op: str, left: object, right: object) -> None:
        with contextlib.suppress(Exception):
            self.compared = [op, repr(left)[:DETAIL], repr(right)[:DETAIL]]

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        def stop(*_: object) -> None:
            self.now["slow"] = True
            raise TimeoutError(f"more than {self.ask['limit']} s")

        timers = ((signal.SIGPROF, signal.ITIMER_PROF, 1), (signal.SIGALRM, signal.ITIMER_REAL, WAITING))
        before = [signal.signal(number, stop) for number, _, _ in timers]
        for _, timer, times in timers:
            signal.setitimer(timer, times * self.ask["limit"])
        try:
            yield
        finally:
            for (number, timer, _), handler in zip(timers, before, strict=True):
                signal.setitimer(timer, 0)
                signal.signal(number, handler)


def plugin(pytest: Any, ask: Ask, tell: Callable[[bytes], None], coverage: Any) -> Reporter:
    class Hooks(Reporter):
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_setup(self, item: Any) -> Iterator[None]:
            with self.limited():
                return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item: Any) -> Iterator[None]:
            with self.limited():
                return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_teardown(self, item: Any) -> Iterator[None]:
            with self.limited():
                return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
            report = yield
            if ask.get("detail") and report.failed and call.excinfo is not None:
                with contextlib.suppress(Exception):
                    report.said = failure(call.excinfo, item, self.compared, ask["app"])
            return report

    return Hooks(ask, tell, coverage)


def home(item: Any, app: str) -> list[str] | None:
    """[file, dotted name] of the function that a test is written as; it may be one of a class elsewhere."""
    function: Any = getattr(item, "function", None)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None:
        return None
    return [os.path.relpath(code.co_filename, app), function.__qualname__]


def failure(excinfo: Any, item: Any, compared: list[str] | None, app: str) -> dict[str, Any]:
    """What a failed test shows: the exception, the values compared, the source of the function in the tests that it
    happened in with the line there (from 1), and what the test was given.

    What a test states is looked at where it states it, perhaps in a function of the tests' own; anything else at the
    line of the test itself.
    """
    own, last = str(item.path), str(excinfo.traceback[-1].path)
    frames = [
        entry
        for entry in excinfo.traceback
        if (str(entry.path) == own or of_tests(str(entry.path), app))
        and not entry.name.startswith("<")
        and entry.frame.code.raw.co_flags & inspect.CO_OPTIMIZED  # No class's body.
    ]
    in_test = last == own or of_tests(last, app) or "/_pytest/" in last or "/unittest/" in last
    source, line = "", 0
    if frames:
        frame = frames[-1 if in_test else 0]
        with contextlib.suppress(OSError, TypeError):
            source, line = str(frame.frame.code.source()), frame.relline + 1
    given = getattr(getattr(item, "callspec", None), "params", {})
    return {
        "type": excinfo.type.__name__,
        "message": str(excinfo.value)[:DETAIL],
        "compared": compared,
        "source": source[:SOURCE],
        "line": line,
        "given": {name: repr(value)[:DETAIL] for name, value in given.items()},
        "raised_in_test": in_test,
    }


def of_tests(path: str, app: str) -> bool:
    """Whether a file lies in a folder of the project's tests."""
    folders = os.path.relpath(path, app).split(os.sep)[:-1]
    return ".." not in folders and bool({"test", "tests"}.intersection(folders))


def lines_by_test(coverage: Any, app: str) -> tuple[dict[str, dict[int, list[int]]], list[str]]:
    """File -> line -> numbers of the tests that ran it, and the tests by number."""
    data = coverage.get_data()
    numbers: dict[str, int] = {}
    files: dict[str, dict[int, list[int]]] = {}
    for path in data.measured_files():
        lines = {}
        for line, names in data.contexts_by_lineno(path).items():
            found = [numbers.setdefault(name, len(numbers)) for name in names if name]
            if found:
                lines[line] = sorted(found)
        if lines:
            files[os.path.relpath(path, app)] = lines
    return files, list(numbers)


def into(out: int) -> Callable[[bytes], None]:
    """Writes lines to a descriptor."""

    def tell(line: bytes) -> None:
        while line:
            line = line[os.write(out, line) :]

    return tell


def run(ask: Ask, tell: Callable[[bytes], None]) -> int:
    """Run what `ask` describes; `tell` gets the lines. Returns pytest's exit code.

    ask: app (folder of the project), settings (a pytest.ini), files (given to pytest), names (test ids, or null for
    all), limit (seconds of CPU a test), stop_at_limit, scratch (a folder that may be written), detail, coverage,
    plugins.
    """
    import pytest

    os.chdir(ask["app"])
    coverage: Any = None
    if ask.get("coverage"):
        coverage = importlib.import_module("coverage").Coverage(
            data_file=None, source=[ask["app"]], config_file=False, messages=False
        )
    args = ["-c", ask["settings"], "--rootdir", ask["app"], "--confcutdir", ask["app"], "-q", "--color=no"]
    args += ["-p", "no:cacheprovider", "--continue-on-collection-errors", f"--basetemp={ask['scratch']}/tmp"]
    args += [word for name in ask.get("plugins", ()) for word in ("-p", name)]
    args += ["--tb=native"] if not ask.get("detail") else []
    if coverage is not None:
        coverage.start()
    reporter = plugin(pytest, ask, tell, coverage)
    code = int(pytest.main([*args, *ask["files"]], plugins=[reporter]))
    if coverage is not None:
        coverage.stop()
        files, tests = lines_by_test(coverage, ask["app"])
        reporter.say(lines=files, tests=tests)
    reporter.say(ended=code)
    return code


if __name__ == "__main__":
    asked = json.loads(sys.stdin.read())
    sys.exit(run(asked, into(asked["out"])))
