"""What an agent is told: the failing behaviour in words and values, never the place.

A text that holds the name of the changed file, of the function or of a class around it is not used.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from lego.inject.edits import Mutation
from lego.inject.source import Project

_EXAMPLES = 3
_TOPICS = 4
_LONGEST = 300
_CHANGES = re.compile(r"0x[0-9a-f]{5,}|/tmp/|\bline \d+|\bFile \"|/app/")
"""Addresses, temporary places and positions: different each time, or a hint at the place."""
_UNEQUAL = re.compile(r"\A(?P<left>.{1,200}?) != (?P<right>.{1,200}?)(?: : .*)?\Z")
_NOT_RAISED = re.compile(r"DID NOT RAISE .*?(\w+)'?>?\)?\Z|\A(\w+) not raised")


def instruction(
    project: Project, mutation: Mutation, failures: Sequence[tuple[str, Mapping[str, Any]]], failing: int
) -> str | None:
    """The text; None where every example would name the place. `failures`: (test id, what it showed), `failing`:
    how many tests fail."""
    banned = place_words(project, mutation)
    examples: list[str] = []
    topics: list[str] = []
    for name, failure in failures:
        example = _example(failure, banned)
        if example and example not in examples:
            examples.append(example)
        topic = _topic(name)
        if topic and topic not in topics and len(topics) < _TOPICS and not names_place(topic, banned):
            topics.append(topic)
    if not examples:
        return None
    # Those that say what was done, as far as there are any.
    examples = sorted(examples, key=lambda example: not example.startswith("at "))[:_EXAMPLES]
    about = f" ({project.summary.strip().rstrip('.')})" if project.summary.strip() else ""
    checks = "one of its checks fails" if failing == 1 else f"{failing} of its checks fail"
    parts = [
        f"The repository in /app is {project.name} {project.version}{about}. Something in it is broken: {checks}.",
        "For example:\n\n" + "\n".join(f"- {example}" for example in examples),
    ]
    if topics:
        parts.append(f"What the failing checks are about: {'; '.join(topics)}.")
    parts.append(
        "Find the cause in the sources and repair it there; everything that works now must go on working. The checks "
        "that show the fault are not in the repository. The other tests are, and pytest is installed."
    )
    text = "\n\n".join(parts) + "\n"
    return None if names_place(text.replace(about, ""), banned - {project.name.lower()}) else text


def place_words(project: Project, mutation: Mutation) -> frozenset[str]:
    """Words that would give the place away, in lower case; the project's own name does not."""
    path = PurePosixPath(mutation.path)
    words = {path.name, path.stem, *mutation.scope.split(".")} - {"__init__", "__main__"}
    own = {project.name.lower(), project.name.lower().replace("-", "_")}
    return frozenset(word.lower().strip("_") for word in words if word.strip("_")) - own


def names_place(text: str, banned: Iterable[str]) -> bool:
    """Whether a banned word stands in the text by itself, its parts joined in whatever way; underscores part words."""
    lower = text.lower()
    joined = [r"[\s_-]*".join(map(re.escape, word.split("_"))) for word in banned]
    return any(re.search(rf"(?<![a-z0-9]){word}(?![a-z0-9])", lower) for word in joined)


def _example(failure: Mapping[str, Any], banned: frozenset[str]) -> str:
    """One failure in one line, or nothing where it would tell the place or means nothing to a reader."""
    said = _said(failure)
    if not said or len(said) > _LONGEST or _CHANGES.search(said) or names_place(said, banned):
        return ""
    statement = " ".join(str(failure.get("statement", "")).split())
    usable = 0 < len(statement) <= _LONGEST and "`" not in statement and not _CHANGES.search(statement)
    if usable and not names_place(statement, banned):
        return f"at `{statement}`, {said}"
    return said


def _said(failure: Mapping[str, Any]) -> str:
    kind, message = str(failure["type"]), " ".join(str(failure["message"]).split())
    compared = failure.get("compared")
    if missing := _NOT_RAISED.search(message):
        return f"no `{missing[1] or missing[2]}` is raised where one is due"
    if kind == "AssertionError" and compared:
        operator, left, right = (" ".join(str(one).split()) for one in compared)
        if "`" in left + right:
            return ""
        if operator == "==":
            return f"a result is `{left}` and should equal `{right}`"
        return f"a result is `{left}`, for which `{operator} {right}` should hold"
    if kind == "AssertionError":
        unequal = _UNEQUAL.match(message)
        if unequal and "`" not in message:
            return f"`{unequal['left']}` and `{unequal['right']}` should be equal"
        return "what it states does not hold" if failure.get("statement", "").startswith(("assert", "self.")) else ""
    if failure.get("raised_in_test") and kind in ("Failed", "Exit"):
        return ""
    shown = f"{kind}: {message}" if message else kind
    return f"`{shown}` is raised where no error should be" if "`" not in shown else ""


def _topic(name: str) -> str:
    """A test's id as words: `tests/test_x.py::TestFoo::test_bar_baz[1]` as "bar baz"."""
    function = re.sub(r"\[.*", "", name.rpartition("::")[2])
    words = re.sub(r"\Atest_?|_", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", function)).split()
    return " ".join(word.lower() for word in words if not word.isdigit())
