"""The files of a Harbor task folder: which of them count, and the hash by which a dataset pins them."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

from pathspec import GitIgnoreSpec

from lego.errors import TaskError
from lego.tasks.reading import text_of
from lego.tasks.task import File, Tree

IGNORE = ".harborignore"
_IGNORED_NAMES = {"__pycache__", ".DS_Store", ".git"}
_UNPUBLISHED = ("__pycache__/", "*.pyc", ".DS_Store", "*.swp", "*.swo", "*~")
_TOP = ("task.toml", "instruction.md", "README.md", "trajectory.json")
_FOLDERS = ("environment", "tests", "solution", "steps")


def pattern(text: str) -> str:
    """A pattern as .gitignore has them. Raises ValueError for what is none."""
    try:
        GitIgnoreSpec.from_lines([text])
    except ValueError:
        raise ValueError(f"{text!r} is no pattern as .gitignore has them") from None
    return text


def read_tree(folder: Path, *, ignore_rules: bool = False) -> Tree:
    """Every regular file below `folder`. Links are followed while they stay inside; modes are 644 or 755, since a
    checkout's umask must not change what the task is.

    `ignore_rules`: leave out what the .harborignore files in it say, and those files. Raises TaskError for what is
    neither file nor folder, cannot be read, or leads outside.
    """
    files: dict[str, File] = {}
    if not folder.is_dir():
        return files
    inside = folder.resolve()
    rules = _Rules(folder) if ignore_rules else None
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        if _IGNORED_NAMES.intersection(relative.parts) or path.is_dir() or (rules and rules.leave_out(path)):
            continue
        try:
            if path.is_symlink() and not path.resolve().is_relative_to(inside):
                raise TaskError(f"{path}: a link that leads out of the task's folder")
            mode = path.stat().st_mode
            if not stat.S_ISREG(mode):
                raise TaskError(f"{path}: neither a file nor a folder")
            files[relative.as_posix()] = File(path.read_bytes(), 0o755 if mode & 0o111 else 0o644)
        except (OSError, RuntimeError) as error:  # Python before 3.13 calls a loop of links a RuntimeError
            raise TaskError(f"{path}: cannot be read: {error}") from error
    return files


def content_hash(folder: Path) -> str:
    """sha256 hex over a task's files as Harbor publishes them: the digest of dataset.toml, without its `sha256:`."""
    total = hashlib.sha256()
    for path in _published(folder):
        total.update(
            f"{path.relative_to(folder).as_posix()}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode()
        )
    return total.hexdigest()


def _published(folder: Path) -> list[Path]:
    own = folder / ".gitignore"
    spec = _patterns(own) if own.is_file() else GitIgnoreSpec.from_lines(_UNPUBLISHED)
    found = [folder / name for name in _TOP if (folder / name).is_file()]
    for name in _FOLDERS:
        found += [path for path in (folder / name).rglob("*") if path.is_file() and not _left_out(folder, path)]
    found = [path for path in found if not spec.match_file(path.relative_to(folder).as_posix())]
    return sorted(found, key=lambda path: path.relative_to(folder).as_posix())


def _left_out(folder: Path, path: Path) -> bool:
    """Whether .harborignore files leave a path out; they have a say in tests and solution folders alone."""
    if path.name == IGNORE:
        return True
    parts = path.relative_to(folder).parts
    depth = 2 if parts[0] == "steps" else 0
    if len(parts) <= depth or parts[depth] not in ("tests", "solution"):
        return False
    return _Rules(folder.joinpath(*parts[: depth + 1])).leave_out(path)


class _Rules:
    """The .harborignore files of one folder and those below it: the nearest has the last word, but what lies in a
    folder that is left out stays out."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._specs: dict[Path, GitIgnoreSpec] = {}

    def leave_out(self, path: Path) -> bool:
        if path.name == IGNORE:
            return True
        specs = [(self._root, self._spec(self._root))]
        for candidate in _down_to(path, self._root):
            name = "/" if candidate.is_dir() else ""
            out = False
            for folder, spec in specs:
                verdict = spec.check_file(candidate.relative_to(folder).as_posix() + name).include
                out = out if verdict is None else verdict
            if out:
                return True
            if candidate.is_dir():
                specs.append((candidate, self._spec(candidate)))
        return False

    def _spec(self, folder: Path) -> GitIgnoreSpec:
        if folder not in self._specs:
            path = folder / IGNORE
            self._specs[folder] = _patterns(path) if path.is_file() else GitIgnoreSpec([])
        return self._specs[folder]


def _patterns(path: Path) -> GitIgnoreSpec:
    try:
        return GitIgnoreSpec.from_lines(text_of(path).splitlines())
    except ValueError as error:
        raise TaskError(f"{path}: not a list of patterns: {error}") from error


def _down_to(path: Path, root: Path) -> Iterator[Path]:
    for part in path.relative_to(root).parts:
        root /= part
        yield root
