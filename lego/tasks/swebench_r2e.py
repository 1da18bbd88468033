"""Rows of R2E-Gym, whose fields are its own: a parsed commit, a table of outcomes, tests as they are written.

Field names, the test command and the files that its images hold are those of github.com/R2E-Gym/R2E-Gym.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from lego.errors import TaskError
from lego.tasks.reading import json_of

_TESTS = "r2e_tests"
_WARNINGS = "PYTHONWARNINGS=ignore::UserWarning,ignore::SyntaxWarning"
_COMMAND = f"{_WARNINGS} {{before}}.venv/bin/python -W ignore -m pytest -rA {_TESTS}"
_ON_A_SCREEN = {"orange3"}
_NOTES = (
    "run_tests.sh", "syn_issue.json", "expected_test_output.json", "execution_result.json", "parsed_commit.json",
    "modified_files.json", "modified_entities.json", _TESTS,
)  # fmt: skip
GIVES_AWAY = (f"/{_TESTS}", *(f"/testbed/{name}" for name in _NOTES))
"""What the images hold of the tests and of the fix."""

_MARKS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}


@dataclass(frozen=True)
class R2E:
    """One row. `passing`: tests that must pass; those that fail with the fix too say nothing. `tests`: path in the
    repository -> file. `patch`: the fix without its tests; empty where the row lacks its parsed commit."""

    repo: str
    commit: str
    problem: str
    image: str
    command: str
    patch: bytes
    passing: tuple[str, ...]
    tests: Mapping[str, bytes]


def read(raw: Mapping[str, Any], where: str) -> R2E:
    """Raises TaskError where a field is missing or is not what R2E writes there."""
    try:
        expected = json_of(raw["expected_output_json"], f"{where}: expected_output_json")
        ran = json_of(raw["execution_result_content"], f"{where}: execution_result_content")
        codes = dict(zip(ran["test_file_names"], ran["test_file_codes"], strict=True))
        passing = tuple(name.split(" - ")[0] for name, outcome in expected.items() if outcome == "PASSED")
        repo, commit, image = str(raw["repo_name"]), str(raw["commit_hash"]), str(raw["docker_image"])
        problem = str(raw["problem_statement"])
        parsed = raw.get("parsed_commit_content")
        patch = "".join(_patches(json_of(parsed, f"{where}: parsed_commit_content"))) if parsed else ""
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{where}: not an R2E row: {error!r}") from error
    if not passing or not image or not problem:
        raise TaskError(f"{where}: not an R2E row: docker_image, problem_statement or passing tests are missing")
    before = "QT_QPA_PLATFORM=minimal xvfb-run --auto-servernum " if repo in _ON_A_SCREEN else ""
    tests = {f"{_TESTS}/{name}": str(code).encode() for name, code in codes.items()}
    return R2E(repo, commit, problem, image, _COMMAND.format(before=before), patch.encode(), passing, tests)


def _patches(commit: Mapping[str, Any]) -> Iterator[str]:
    """The commit as git writes it, a text a file: its Python files that are no tests, which is what R2E takes for the
    fix."""
    for file in commit["file_diffs"]:
        path = PurePosixPath(file["header"]["file"]["path"])
        if path.suffix != ".py" or _is_test(path):
            continue
        yield f"diff --git a/{path} b/{path}\n"
        if file["header"].get("misc_line"):
            yield f"{file['header']['misc_line']}\n"
        if file.get("minus_file") and file.get("plus_file"):
            yield f"--- {file['minus_file']['path']}\n+++ {file['plus_file']['path']}\n"
        for hunk in file.get("hunks") or ():
            old, new = (_range(hunk["descriptor"][side]) for side in ("old_range", "new_range"))
            yield f"@@ -{old} +{new} @@\n"
            yield from (f"{_MARKS[line['type']]}{line['content']}\n" for line in hunk["line_group"]["all_lines"])


def _range(lines: Mapping[str, Any]) -> str:
    return str(lines["start"]) if lines.get("length") is None else f"{lines['start']},{lines['length']}"


def _is_test(path: PurePosixPath) -> bool:
    named = path.name.startswith("test_") or path.name.endswith("_test.py")
    return named or bool({"test", "tests", "Test", "Tests"} & set(path.parts))
