"""What an agent is told: the failing behaviour in code and values, never the place.

The names of the changed file, of the function and of the classes around it are left out of what is shown, and nothing
that holds them otherwise is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from lego.inject.edits import Mutation
from lego.inject.shown import Shown, shown
from lego.inject.source import Project

BLANK = "___"
_EXAMPLES = 3
_TOPICS = 4
_LONGEST = 300
_CHANGES = re.compile(r"0x[0-9a-f]{5,}|/tmp/|\bline \d+|\bFile \"|/app/")
"""Addresses, temporary places and positions: different each time, or a hint at the place."""
_UNEQUAL = re.compile(r"\A(?:\w+ differ: )?(?P<left>.{1,200}?) != (?P<right>.{1,200}?)(?: : .*)?\Z")
_HOLDS_NOT = "What the last statement says does not hold."
_OTHER_TEXT = re.compile(r"^ *(?:Input|Actual message): ['\"](.*)['\"]$|does not match ['\"](.*)['\"]\Z", re.M)
_NOT_RAISED = re.compile(r"DID NOT RAISE .*?(\w+)'?>?\)?\Z|\A(\w+) not raised")


def instruction(
    project: Project, mutation: Mutation, failures: Sequence[tuple[str, Mapping[str, Any]]], failing: int
) -> str | None:
    """The text; None where no failure can be shown. `failures`: (test id, what it showed),
    `failing`: how many tests fail."""
    banned = place_words(project, mutation)
    examples: list[str] = []
    topics: list[str] = []
    for name, failure in failures:
        example = _example(failure, banned) if len(examples) < _EXAMPLES else ""
        if example and example not in examples:
            examples.append(example)
        topic = _topic(name)
        if topic and topic not in topics and len(topics) < _TOPICS and not names_place(topic, banned):
            topics.append(topic)
    if not examples:
        return None
    about = f" ({project.summary.strip().rstrip('.')})" if project.summary.strip() else ""
    checks = "one of its checks fails" if failing == 1 else f"{failing} of its checks fail"
    parts = [
        f"The repository in /app is {project.name} {project.version}{about}. Something in it is broken: {checks}.",
        "For example:",
        *examples,
    ]
    if any(BLANK in example for example in examples):
        parts.append(f"`{BLANK}` stands for names that are left out here.")
    if topics:
        parts.append(f"What the failing checks are about: {'; '.join(topics)}.")
    parts.append(
        "Find the cause in the sources and repair it there; everything that works now must go on working. The checks "
        "that show the fault are not in the repository. The other tests are, and pytest is installed."
    )
    return "\n\n".join(parts) + "\n"


def place_words(project: Project, mutation: Mutation) -> frozenset[str]:
    """Words that would give the place away, in lower case; the project's own name does not."""
    path = PurePosixPath(mutation.path)
    words = {path.name, path.stem, *mutation.scope.split(".")} - {"__init__", "__main__"}
    own = {project.name.lower(), project.name.lower().replace("-", "_")}
    parted = (re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", word) for word in words)
    return frozenset(word.lower().strip("_") for word in parted if word.strip("_")) - own


def names_place(text: str, banned: Iterable[str]) -> bool:
    """Whether a banned word stands in the text by itself, its parts joined in whatever way; underscores and capitals
    part words."""
    return any(_pattern(word).search(text) for word in banned)


def _blanked(text: str, banned: Iterable[str]) -> str:
    """The text with a blank in the place of each banned word and its underscores."""
    for word in sorted(banned, key=len, reverse=True):
        text = _pattern(word).sub("\0", text)
    return re.sub(r"_*\0_*", BLANK, text)


def _pattern(word: str) -> re.Pattern[str]:
    joined = r"[\s_-]*".join(map(re.escape, word.split("_")))
    turn = r"(?<=[a-z0-9])(?=[A-Z])"
    return re.compile(rf"(?:(?<![A-Za-z0-9])|{turn})(?i:{joined})(?:(?![A-Za-z0-9])|{turn})")


def _example(failure: Mapping[str, Any], banned: frozenset[str]) -> str:
    """One failure as its code and a sentence on what came of it; nothing where there is no such sentence."""
    code = shown(str(failure["source"]), int(failure["line"]), failure["given"])
    said = _said(failure, code, banned) if code else ""
    if not code or not said or "```" in code.text:
        return ""
    return f"```python\n{_blanked(code.text, banned)}\n```\n\n{said}"


def _said(failure: Mapping[str, Any], code: Shown, banned: frozenset[str]) -> str:
    kind, message = str(failure["type"]), str(failure["message"]).strip()
    first = message.partition("\n")[0].strip()
    if missing := _NOT_RAISED.search(" ".join(message.split())):
        return f"No `{missing[1] or missing[2]}` is raised, where one is due."
    if kind == "AssertionError" and failure["raised_in_test"]:
        if failure["compared"]:
            operator, left, right = failure["compared"]
        elif unequal := _UNEQUAL.match(first):
            operator, left, right = "==", unequal["left"], unequal["right"]
        elif code.raises:
            return _other_text(message)
        else:
            return _HOLDS_NOT
        if not (_sayable(left) and _sayable(right)) or names_place(f"{left} {right}", banned):
            return _HOLDS_NOT
        return _compared(operator, left, right, code.expected)
    if failure["raised_in_test"] and kind in ("Failed", "Exit"):
        return ""
    error = _blanked(f"{kind}: {first}" if first and _sayable(first) else kind, banned)
    return f"`{error}` is raised {'in place of the error that is due' if code.raises else 'where no error should be'}."


def _other_text(message: str) -> str:
    """What pytest and unittest say where an error is the one that is due, but not its text."""
    found = _OTHER_TEXT.search(message)
    text = found[1] or found[2] if found else ""
    tail = f": `{text}`" if text and _sayable(text) else ""
    return f"The error that is raised does not say what it should{tail}."


def _sayable(value: str) -> bool:
    return len(value) <= _LONGEST and not re.search(r"[`\n]", value) and not _CHANGES.search(value)


def _compared(operator: str, left: str, right: str, expected: str) -> str:
    if operator != "==":
        return f"What should hold comes out as `{left} {operator} {right}`."
    if not expected:
        return f"`{left}` and `{right}` should be equal."
    result, due = (left, right) if expected == "right" else (right, left)
    return f"A result is `{result}` and should equal `{due}`."


def _topic(name: str) -> str:
    """A test's id as words: `tests/test_x.py::TestFoo::test_bar_baz[1]` as "bar baz"."""
    function = re.sub(r"\[.*", "", name.rpartition("::")[2])
    words = re.sub(r"\Atest_?|_", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", function)).split()
    return " ".join(word.lower() for word in words if not word.isdigit())
