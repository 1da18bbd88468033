"""What a test log says of each test, read as the published benchmarks read it: one function a framework.

Each takes a log without colour codes and returns test id -> one of STATUS. Where an id stands for several tests (the
benchmarks cut ids at the first space), a failure of one of them is the status, then a pass, then the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
STATUS = (PASSED, FAILED, ERROR, SKIPPED, XFAIL)
_WEIGHT = {SKIPPED: 0, XFAIL: 1, PASSED: 2, ERROR: 3, FAILED: 4}

_WORDS = "|".join(STATUS)
_SUMMARY = re.compile(rf"^({_WORDS})[ \t]+(\S+)", re.MULTILINE)
_WHOLE = re.compile(rf"^({_WORDS})[ \t]+(\S.*?)[ \t\r]*$", re.MULTILINE)
_VERBOSE = re.compile(rf"^(\S+)[ \t]+({_WORDS})(?:[ \t].*(?:{_WORDS}))?\r?$", re.MULTILINE)
_FIRST = re.compile(rf"^(\S+)[ \t]+({_WORDS})", re.MULTILINE)
_SEABORN = re.compile(r"^(?:(FAILED)[ \t]+(\S+)|(PASSED)[ \t]+(\S+)|(\S+)[ \t]+(PASSED) )", re.MULTILINE)
_SYMPY = re.compile(r"^[ \t]*(test_\S*)(?:[ \t].*)? (ok|E|F)[ \t\r]*$", re.MULTILINE)
_SYMPY_FAILURE = re.compile(r"^_+ (\S+\.py:\S+) _+[ \t\r]*$", re.MULTILINE)
_SYMPY_WORDS = {"ok": PASSED, "E": ERROR, "F": FAILED}
_GO = re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (.+) \(.+\)[ \t\r]*$", re.MULTILINE)
_GO_WORDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_CARGO = re.compile(r"^[ \t]*test\s+(\S+)\s+\.\.\.\s+(ok|FAILED)[ \t\r]*$", re.MULTILINE)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_DJANGO_ENDS = ((" ... FAIL", FAILED), (" ... ERROR", ERROR))
_DJANGO_TORN = re.compile(
    r"^(.*?)\s\.\.\.\s(?:Testing against Django installed in (?s:.*?) silenced\)\.|Internal Server Error: /.*/"
    r"|System check identified no issues \(0 silenced\))\nok$",
    re.MULTILINE,
)


def plain(log: str) -> str:
    """A log without colour codes, its lines ended by newlines alone."""
    return _ANSI.sub("", log) if "\x1b" in log else log


def pytest(log: str) -> dict[str, str]:
    """The short summary that `-rA` asks for; ids end at their first space."""
    return _heaviest((test, status) for status, test in _SUMMARY.findall(log))


def pytest_whole(log: str) -> dict[str, str]:
    """The same summary with ids as they are, spaces and all; what a failure says after ` - ` is none of it."""
    found = []
    for status, rest in _WHOLE.findall(log):
        found.append((rest, status))
        # An id may hold ` - ` itself, so that every way to cut the line is kept; only one of them is asked for.
        if status in (FAILED, ERROR, XFAIL):
            at = rest.find(" - ")
            while at >= 0:
                found.append((rest[:at], status))
                at = rest.find(" - ", at + 1)
    return _heaviest(found)


def pytest_options(log: str) -> dict[str, str]:
    """As `pytest`, a parameter that is a path cut down to its last part."""
    return _heaviest((_short_option(test), status) for status, test in _SUMMARY.findall(log))


def pytest_verbose(log: str) -> dict[str, str]:
    """As `pytest`, and the lines of `-v` of old releases, which end with the status."""
    found = [(test, status) for status, test in _SUMMARY.findall(log)]
    found += [(test, status) for test, status in _VERBOSE.findall(log) if test not in STATUS]
    return _heaviest(found)


def pytest_first(log: str) -> dict[str, str]:
    """The lines of `-v`: an id, its status, and whatever follows."""
    return _heaviest((test, status) for test, status in _FIRST.findall(log) if test not in STATUS)


def r2e(log: str) -> dict[str, str]:
    """The short summary, tests named by class and function alone."""
    return _heaviest((".".join(test.split("::")[1:]), status) for test, status in pytest_whole(log).items())


def matplotlib(log: str) -> dict[str, str]:
    """As `pytest`, with the numbers of mouse buttons for their names."""
    return pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def seaborn(log: str) -> dict[str, str]:
    """Only what passed and what failed."""
    found = []
    for failed, failing, passed, passing, verbose, word in _SEABORN.findall(log):
        found.append((failing or passing or verbose, failed or passed or word))
    return _heaviest(found)


def sympy(log: str) -> dict[str, str]:
    """The lines of sympy's own test runner, by function name alone, and the titles of failures, by file and name.

    A file's last line ends with the file's verdict, and is not read: only a failure there has a title.
    """
    found = [(test, _SYMPY_WORDS[word]) for test, word in _SYMPY.findall(log)]
    return _heaviest([*found, *((title, FAILED) for title in _SYMPY_FAILURE.findall(log))])


def django(log: str) -> dict[str, str]:
    """unittest's verbose lines, in whatever way output of the tests tears them apart."""
    found: dict[str, str] = {}
    begun = ""
    for raw in log.split("\n"):
        line = raw.strip()
        if "--version is equivalent to version" in line:
            found["--version is equivalent to version"] = PASSED
        test, dots, _ = line.partition(" ... ")
        if dots:
            begun = test
        if line.endswith((" ... ok", " ... OK", " ...  OK")):
            if line.startswith("Applying sites.0002_alter_domain_unique...test_no_migrations"):
                line = line.split("...", 1)[1].strip()
            found[line[: line.rindex(" ...")]] = PASSED
        if " ... skipped" in line:
            found[line.split(" ... skipped")[0]] = SKIPPED
        for end, status in _DJANGO_ENDS:
            if line.endswith(end):
                found[line.split(end)[0]] = status
        for start, status in (("FAIL:", FAILED), ("ERROR:", ERROR)):
            words = line.split()
            if line.startswith(start) and len(words) > 1:
                found[words[1]] = status
        if line.startswith("ok") and begun:
            found[begun] = PASSED
    if "\nok" in log:
        found |= {match[1]: PASSED for match in _DJANGO_TORN.finditer(log)}
    return found


def go(log: str) -> dict[str, str]:
    """`go test -v`."""
    return _heaviest((test, _GO_WORDS[word]) for word, test in _GO.findall(log))


def cargo(log: str) -> dict[str, str]:
    """`cargo test`."""
    return _heaviest((test, PASSED if word == "ok" else FAILED) for test, word in _CARGO.findall(log))


PARSERS: Mapping[str, Callable[[str], dict[str, str]]] = {
    "pytest": pytest,
    "pytest_options": pytest_options,
    "pytest_v2": pytest_verbose,
    "swesmith": pytest_first,
    "r2e": r2e,
    "matplotlib": matplotlib,
    "seaborn": seaborn,
    "sympy": sympy,
    "django": django,
    "gotest": go,
    "cargo": cargo,
}
"""By the names that the published benchmarks give them, without `parse_log_`; `swesmith` and `r2e` have no own."""

WHOLE_IDS = frozenset(("pytest", "pytest_options", "pytest_v2", "matplotlib"))
"""Parsers of logs in which an id with spaces can be found as it is."""


def _heaviest(found: Iterable[tuple[str, str]]) -> dict[str, str]:
    status_of: dict[str, str] = {}
    for test, status in found:
        before = status_of.get(test)
        if before is None or _WEIGHT[status] > _WEIGHT[before]:
            status_of[test] = status
    return status_of


def _short_option(test: str) -> str:
    main, bracket, option = test.partition("[")
    option, closed, _ = option.rpartition("]")
    if bracket and closed:
        if option.startswith("/") and not option.startswith("//") and "*" not in option:
            option = "/" + option.rpartition("/")[2]
        return f"{main}[{option}]"
    return test
