"""What a patch touches, and which tests a test patch names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from unidiff import PatchSet, UnidiffParseError

from lego.errors import TaskError

_NOT_TESTS = (".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml")
"""Endings of files that the published benchmark does not hand to the test command."""
_HEADER = re.compile(r"^diff --git a/(.+) b/(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Touched:
    """Paths relative to the repository. `before`: of files that are there before the patch, `after`: after it."""

    before: frozenset[str]
    after: tuple[str, ...]

    @property
    def all(self) -> frozenset[str]:
        return self.before | set(self.after)


def touched(patch: bytes, where: str) -> Touched:
    """The files that a patch adds, changes, renames or deletes. Raises TaskError where it is no patch."""
    text = patch.decode(errors="replace")
    try:
        files = PatchSet.from_string(text)
    except UnidiffParseError as error:
        raise TaskError(f"{where}: not a patch: {error}") from error
    before, after = set(), []
    for file in files:
        if not file.is_added_file:
            before.add(_name(file.source_file))
        if not file.is_removed_file:
            after.append(_name(file.target_file))
    # A rename without a change, a binary file and a change of mode have no hunk, and are no file to the library.
    for old, new in _HEADER.findall(text):
        if new not in after and old not in before:
            before.add(old)
            after.append(new)
    if patch and not before and not after:
        raise TaskError(f"{where}: not a patch: it names no file")
    return Touched(frozenset(before), tuple(dict.fromkeys(after)))


def directives(test_patch: Touched, repo: str) -> list[str]:
    """The arguments that the published benchmark gives to the test command: the test files that are there after the
    patch, as modules for django."""
    files = [path for path in test_patch.after if not path.endswith(_NOT_TESTS)]
    if repo != "django/django":
        return files
    return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in files]


def _name(path: str) -> str:
    return path[2:] if path.startswith(("a/", "b/")) else path
