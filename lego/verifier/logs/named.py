"""Named tests against a log: which of them it reports as passed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lego.errors import VerifierError
from lego.verifier.logs import frameworks

START, END = ">>>>> Start Test Output", ">>>>> End Test Output"
BROKEN = (">>>>> Patch Apply Failed", ">>>>> Reset Failed", ">>>>> Tests Errored", ">>>>> Tests Timed Out")
"""Lines by which the published test scripts say that there is nothing to read."""
_TRACE = re.compile(r"\s*\+ \S")


@dataclass(frozen=True)
class NamedResults:
    """`failed`: named tests that are not reported as passed -> their status, or `missing`. `reported`: every test of
    the log by its status."""

    passed: tuple[str, ...]
    failed: Mapping[str, str]
    reported: Mapping[str, str]

    @property
    def resolved(self) -> bool:
        return bool(self.passed) and not self.failed


def test_output(log: str, word: str = "") -> str | None:
    """The part of a log that the test command wrote; None where nothing shows that a test command wrote it.

    With `word` the markers must carry it. Without, the published scripts' plain markers do, or, where there are none,
    the trace that the script's shell writes before the command (`+ pytest …`): what a test process says by itself,
    with no script around it, is no test log.
    """
    if any(line in log for line in BROKEN):
        return None
    start, end = (f"{START} {word}", f"{END} {word}") if word else (START, END)
    begin = log.find(start)
    if begin >= 0:
        stop = log.rfind(end)
        return log[begin + len(start) : stop] if stop > begin else None
    return log if not word and _TRACE.match(log) else None


def results(log: str, parser: str, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> NamedResults:
    """What a test command's output says of named tests; one that it does not mention has not passed.

    An id with spaces counts by its own lines. One that was cut at its first space (its bracket never closes) stands
    for all tests that begin so, and one failure among them is its own. A test that is expected to fail, and does, is
    as good as passed where it is to stay as it was, and nowhere else.
    Raises VerifierError for an unknown parser.
    """
    read = frameworks.PARSERS.get(parser)
    if read is None:
        raise VerifierError(
            f"no log parser is named {parser!r}", hint=f"parsers: {', '.join(frameworks.PARSERS)}", fault="task"
        )
    text = frameworks.plain(log)
    asked = (*fail_to_pass, *pass_to_pass)
    reported = frameworks.r2e(text, asked) if read is frameworks.r2e else read(text)
    spaced = any(" " in name for name in asked) and parser in frameworks.WHOLE_IDS
    whole = frameworks.pytest_whole(text, asked) if spaced else {}
    passed: list[str] = []
    failed: dict[str, str] = {}
    good: dict[str, tuple[str, ...]] = {name: (frameworks.PASSED, frameworks.XFAIL) for name in pass_to_pass}
    good |= {name: (frameworks.PASSED,) for name in fail_to_pass}
    for name, wanted in good.items():
        status = whole.get(name) if spaced and " " in name else reported.get(name)
        if status in wanted:
            passed.append(name)
        else:
            failed[name] = status or "missing"
    return NamedResults(tuple(passed), failed, reported)
