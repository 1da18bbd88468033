"""What a test log says of each test, read as the published benchmarks read it: one function a framework.

Each takes a log without colour codes and returns test id -> one of STATUS. Where an id stands for several tests (the
benchmarks cut ids at the first space), a failure of one of them is the status, then a pass, then the rest.

Code under test may print whatever it likes, 16 MiB of it on one line: no expression here has two parts that can share
the same characters out between them, and no line is kept in more than two versions, so that time and memory grow with
the length of a log and no faster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

PASSED, FAILED, ERROR, SKIPPED, XFAIL = "PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL"
STATUS = (PASSED, FAILED, ERROR, SKIPPED, XFAIL)
_WEIGHT = {SKIPPED: 0, XFAIL: 1, PASSED: 2, ERROR: 3, FAILED: 4}

_WORDS = "|".join(STATUS)
_SUMMARY = re.compile(rf"^({_WORDS})[ \t]+(\S+)", re.MULTILINE)
_WHOLE = re.compile(rf"^({_WORDS})[ \t]+(\S.*)$", re.MULTILINE)
_VERBOSE = re.compile(rf"^(\S+)[ \t]+({_WORDS})(?:[ \t].*(?:{_WORDS}))?\r?$", re.MULTILINE)
_FIRST = re.compile(rf"^(\S+)[ \t]+({_WORDS})", re.MULTILINE)
_SEABORN = re.compile(r"^(?:(FAILED)[ \t]+(\S+)|(PASSED)[ \t]+(\S+)|(\S+)[ \t]+(PASSED) )", re.MULTILINE)
_SYMPY = re.compile(r"^[ \t]*(test_\S*)(?:[ \t].*)? (ok|E|F)[ \t\r]*$", re.MULTILINE)
_SYMPY_FAILURE = re.compile(r"^_+ (\S+) _+[ \t\r]*$", re.MULTILINE)
_SYMPY_WORDS = {"ok": PASSED, "E": ERROR, "F": FAILED}
_GO = re.compile(r"^[ \t]*--- (PASS|FAIL|SKIP): (.+)$", re.MULTILINE)
_GO_WORDS = {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED}
_CARGO = re.compile(r"^[ \t]*test\s+(\S+)\s+\.\.\.\s+(ok|FAILED)[ \t\r]*$", re.MULTILINE)
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_DJANGO_ENDS = ((" ... FAIL", FAILED), (" ... ERROR", ERROR))
# What tears a test's line from its `ok`, and how that ends.
_DJANGO_TORN = (
    (re.compile(r"\s\.\.\.\sTesting against Django installed in "), " silenced).\nok", False),
    (re.compile(r"\s\.\.\.\sInternal Server Error: /"), "/\nok", True),
    (re.compile(r"\s\.\.\.\sSystem check identified no issues \(0 silenced\)(?=\nok$)", re.M), "\nok", True),
)


def plain(log: str) -> str:
    """A log without colour codes, its lines ended by newlines alone."""
    return _ANSI.sub("", log) if "\x1b" in log else log


def pytest(log: str) -> dict[str, str]:
    """The short summary that `-rA` asks for; ids end at their first space."""
    return _heaviest((test, status) for status, test in _found(_SUMMARY, log))


def pytest_whole(log: str, names: Iterable[str] = ()) -> dict[str, str]:
    """The same summary with ids as they are, spaces and all; what a failure says after ` - ` is none of it. `names`:
    ids that may hold ` - ` themselves."""
    return _uncut(((rest.rstrip(" \t\r"), status) for status, rest in _found(_WHOLE, log)), names)


def _uncut(lines: Iterable[tuple[str, str]], names: Iterable[str]) -> dict[str, str]:
    """The status of each id, from what follows the status on its line."""
    dashed: dict[str, list[str]] = {}
    for name in names:
        if " - " in name:
            dashed.setdefault(name.partition(" - ")[0], []).append(name)

    def found() -> Iterator[tuple[str, str]]:
        for rest, status in lines:
            yield rest, status
            first, dash, _ = rest.partition(" - ")
            if dash and status in (FAILED, ERROR, XFAIL):
                yield first, status
                yield from ((name, status) for name in dashed.get(first, ()) if rest.startswith(f"{name} - "))

    return _heaviest(found())


def pytest_options(log: str) -> dict[str, str]:
    """As `pytest`, a parameter that is a path cut down to its last part."""
    return _heaviest((_short_option(test), status) for status, test in _found(_SUMMARY, log))


def pytest_verbose(log: str) -> dict[str, str]:
    """As `pytest`, and the lines of `-v` of old releases, which end with the status."""
    summary = ((test, status) for status, test in _found(_SUMMARY, log))
    return _heaviest(chain(summary, ((test, status) for test, status in _found(_VERBOSE, log) if test not in STATUS)))


def pytest_first(log: str) -> dict[str, str]:
    """The lines of `-v`: an id, its status, and whatever follows."""
    return _heaviest((test, status) for test, status in _found(_FIRST, log) if test not in STATUS)


def r2e(log: str, names: Iterable[str] = ()) -> dict[str, str]:
    """As `pytest_whole`, tests named by class and function alone."""
    lines = ((rest.rstrip(" \t\r"), status) for status, rest in _found(_WHOLE, log))
    return _uncut(((".".join(rest.split("::")[1:]), status) for rest, status in lines), names)


def matplotlib(log: str) -> dict[str, str]:
    """As `pytest`, with the numbers of mouse buttons for their names."""
    return pytest(log.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3"))


def seaborn(log: str) -> dict[str, str]:
    """Only what passed and what failed."""
    return _heaviest(
        (failing or passing or verbose, failed or passed or word)
        for failed, failing, passed, passing, verbose, word in _found(_SEABORN, log)
    )


def sympy(log: str) -> dict[str, str]:
    """The lines of sympy's own test runner, by function name alone, and the titles of failures, by file and name.

    A file's last line ends with the file's verdict, and is not read: only a failure there has a title.
    """
    found = ((test, _SYMPY_WORDS[word]) for test, word in _found(_SYMPY, log))
    titles = (title for (title,) in _found(_SYMPY_FAILURE, log))
    named = ((title, FAILED) for title in titles if -1 < title.find(".py:", 1) < len(title) - len(".py:"))
    return _heaviest(chain(found, named))


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
    for how in _DJANGO_TORN:
        found |= dict.fromkeys(_torn(log, *how), PASSED)
    return found


def _torn(log: str, tear: re.Pattern[str], end: str, same_line: bool) -> Iterator[str]:
    """The tests whose line is torn by what begins with `tear` and comes to its `end`, on the same line or later."""
    done = stop = line_end = 0
    for begun in tear.finditer(log):
        if begun.start() < done:
            continue
        if same_line:
            if begun.end() > line_end:
                line_end = log.find("\n", begun.end())
            if line_end < 0:
                return
            stop = line_end - end.index("\n")
            if stop < begun.end() or not _ends(log, end, stop):
                continue
        else:
            stop = max(stop, begun.end())
            while not _ends(log, end, stop):
                stop = log.find(end, stop + 1)
                if stop < 0:
                    return
        done = stop + len(end)
        yield log[log.rfind("\n", 0, begun.start()) + 1 : begun.start()]


def _ends(log: str, end: str, at: int) -> bool:
    """Whether `end` stands there, and a line ends with it."""
    return log.startswith(end, at) and log[at + len(end) : at + len(end) + 1] in ("", "\n")


def go(log: str) -> dict[str, str]:
    """`go test -v`: a name, and how long it took in brackets."""
    said = ((word, rest.rstrip(" \t\r")) for word, rest in _found(_GO, log))
    cut = ((word, rest, rest.rfind(" (", 1, -2)) for word, rest in said if rest.endswith(")"))
    return _heaviest((rest[:bracket], _GO_WORDS[word]) for word, rest, bracket in cut if bracket > 0)


def cargo(log: str) -> dict[str, str]:
    """`cargo test`."""
    return _heaviest((test, PASSED if word == "ok" else FAILED) for test, word in _found(_CARGO, log))


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


def _found(pattern: re.Pattern[str], log: str) -> Iterator[tuple[str, ...]]:
    """The groups of each match, one after the other: millions of lines are never held at once."""
    return (match.groups(default="") for match in pattern.finditer(log))


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
