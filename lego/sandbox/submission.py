"""What leaves a dead container: the changes under a task's roots, as bytes, less what may not leave.

The change is taken from the file system, never from the agent's git.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from pathspec import GitIgnoreSpec

from lego.errors import SandboxError
from lego.sandbox.container import Box
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.tasks.task import File, Task

DropReason = Literal["protected", "reserved", "cache", "vcs", "build", "special", "too large", "too deep"]

RESERVED = ("/logs/verifier", "/tests", "/solution")
"""The verifier's own places; whatever an agent leaves there is dropped and recorded."""

START_UP_HOOKS = tuple(f"{name}{form}" for name in ("sitecustomize", "usercustomize") for form in (".py", "/", "*.so"))
"""What Python imports by itself when it starts, as a module, a package or a library; gitwildmatch."""

ALWAYS_PROTECTED = (
    "conftest.py",
    "pytest.ini",
    ".pytest.ini",
    "pytest.toml",
    ".pytest.toml",
    "tox.ini",
    *START_UP_HOOKS,
    "*.pth",
    ".github/",
    ".gitlab-ci.yml",
)
"""Files that steer how tests are found and run; gitwildmatch, relative to a root."""

_VCS = frozenset((".git", ".hg", ".svn", ".bzr", ".jj"))
_CACHES = frozenset(
    (
        "__pycache__",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".hypothesis",
        ".tox",
        ".nox",
        ".cache",
        ".venv",
        "venv",
        "node_modules",
        ".eggs",
    )
)
_BUILT = frozenset(("build", "dist", "htmlcov"))
_BUILT_SUFFIXES = (".so", ".egg-info", ".dist-info", ".o", ".whl", ".egg")
_OUTSIDE = frozenset(
    (
        "/proc",
        "/sys",
        "/dev",
        "/run",
        "/tmp",
        "/var/tmp",
        "/logs",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/etc/mtab",
        "/.containerenv",
    )
)
_ROOTS_HOME = "/root"
# What the verifier itself runs on. A task that submits all of the file system submits these only by name.
_SYSTEM = frozenset(
    ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/usr", "/etc", "/opt", "/boot", f"{_ROOTS_HOME}/.local")
)
_VERSION = 2
_READABLE = (1, 2)
_LARGEST_LAID = 1 << 20


@dataclass(frozen=True)
class Dropped:
    """A change that was left out. `special`: no file, link or folder, or a root itself taken away."""

    path: str
    reason: DropReason
    how: Literal["added", "modified", "deleted"]


@dataclass(frozen=True)
class Submission:
    """`entries` in the order they are laid; `dropped` sorted by path. `originals`: what the pristine state has in the
    place of entries, files and links of moderate size alone. `earlier`: what was there at the end of each earlier step,
    where there were several. Equal submissions have equal bytes."""

    roots: tuple[str, ...]
    entries: tuple[Entry, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    originals: tuple[Entry, ...] = ()
    earlier: tuple[Submission, ...] = ()

    @cached_property
    def _content(self) -> dict[str, object]:
        return {
            "roots": [_name(root) for root in self.roots],
            "entries": [_row(entry) for entry in self.entries],
            "dropped": [[_name(d.path), d.reason, d.how] for d in self.dropped],
        }

    @property
    def digest(self) -> str:
        """sha256 hex over roots, entries and dropped, and those of earlier steps."""
        before = [one.digest for one in self.earlier]
        return hashlib.sha256(_compact({**self._content, **({"earlier": before} if before else {})})).hexdigest()

    @property
    def empty(self) -> bool:
        """Whether nothing is left that would change the pristine state."""
        return not self.entries

    def paths(self) -> frozenset[str]:
        """The paths of files and links that were added, modified or deleted."""
        return frozenset(entry.path for entry in self.entries if entry.kind != "dir")

    def apply_to(self, box: Box) -> None:
        """Lay this submission over a box that has not started."""
        box.lay(self.entries, handed_in=True)

    def to_bytes(self) -> bytes:
        """Compressed and self-describing; the same submission gives the same bytes."""
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as out:
            out.write(_compact({"version": _VERSION, **self._whole()}))
        return buffer.getvalue()

    def _whole(self) -> dict[str, object]:
        earlier = {"earlier": [one._whole() for one in self.earlier]} if self.earlier else {}
        return {**self._content, "originals": [_row(each) for each in self.originals], **earlier}

    @property
    def parts(self) -> tuple[Submission, ...]:
        """One for each step that was begun."""
        return (*self.earlier, replace(self, earlier=()))

    @classmethod
    def from_bytes(cls, data: bytes) -> Submission:
        """The inverse of to_bytes. Raises SandboxError on anything else."""
        try:
            index = json.loads(gzip.decompress(data))
            if index["version"] not in _READABLE:
                raise SandboxError(f"the stored submission has version {index['version']}, not {_VERSION}")
            return cls._of(index)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise SandboxError(f"the stored submission cannot be read: {error}") from error

    @classmethod
    def _of(cls, index: dict[str, Any]) -> Submission:
        return cls(
            tuple(_path(root) for root in index["roots"]),
            tuple(map(_entry, index["entries"])),
            tuple(Dropped(_path(p), reason, how) for p, reason, how in index["dropped"]),
            tuple(map(_entry, index.get("originals", ()))),
            tuple(map(cls._of, index.get("earlier", ()))),
        )


def task_roots(podman: Podman, task: Task, image: str) -> tuple[str, ...]:
    """The absolute paths whose changes are a task's submission; a root without a name is the working directory."""
    environment = task.environment
    roots = (root or environment.workdir or podman.image(image).workdir for root in environment.roots or ("",))
    return tuple(dict.fromkeys(roots))


async def collect(
    box: Box,
    roots: Sequence[str],
    *,
    protected: Sequence[str] = (),
    gold_paths: Sequence[str] = (),
    test_files: Sequence[str] = (),
    trusted: bool = False,
    built: bool = False,
) -> Submission:
    """The submission of a box whose command has ended.

    `protected`: gitwildmatch patterns relative to a root; ALWAYS_PROTECTED is added. `gold_paths`: absolute
    paths that the task's own solution changes, which are not protected, unless they are `test_files`: those in which
    named tests stand, relative to a root. `trusted`: this is that solution, and nothing
    is protected from it. `built`: what was built is part of it, for a verifier that gets nothing else.
    """
    watched = [path for path in RESERVED if not any(_under(path, root) for root in roots if root != "/")]
    outside = (_OUTSIDE | _SYSTEM) - set(roots)
    found = await box.changes([*_outermost(roots, outside), *watched], outside)
    spec = GitIgnoreSpec.from_lines([] if trusted else [*ALWAYS_PROTECTED, *protected])
    named = {f"{root.rstrip('/')}/{path}" for root in roots for path in test_files}
    sieve = _Sieve(tuple(roots), spec, frozenset(gold_paths) - named, box.laid, built)
    for entry in found.entries:
        sieve.take(entry)
    for path in found.oversize:
        sieve.leave(path, "too large", "modified")
    for path in found.too_deep:
        sieve.leave(path, "too deep", "added")
    sieve.missing({entry.path for entry in found.entries} | set(found.oversize))
    originals = found.originals | {
        path: Entry(path, "file", file.mode, file.data)
        for path, file in box.laid.items()
        if len(file.data) <= _LARGEST_LAID
    }
    kept = {entry.path for entry in sieve.kept if entry.kind != "dir"}
    return Submission(
        tuple(roots),
        tuple(sieve.kept),
        tuple(sorted(sieve.dropped, key=lambda drop: drop.path)),
        tuple(originals[path] for path in sorted(kept & originals.keys())),
    )


def _outermost(roots: Sequence[str], outside: frozenset[str]) -> list[str]:
    """Less the roots that are seen from another one."""
    return [
        root
        for root in roots
        if any(_under(root, place) for place in outside)
        or not any(_under(root, other) for other in roots if other != root)
    ]


class _Sieve:
    """Sorts changes into kept and dropped."""

    def __init__(
        self,
        roots: tuple[str, ...],
        protected: GitIgnoreSpec,
        gold: frozenset[str],
        laid: Mapping[str, File],
        built: bool,
    ) -> None:
        self._roots, self._protected, self._gold, self._laid, self._built = roots, protected, gold, laid, built
        self._laid_folders = {folder for path in laid for folder in _folders(path)}
        self._dropped_folders: set[str] = set()
        self._thinned: set[str] = set()
        self.kept: list[Entry] = []
        self.dropped: list[Dropped] = []

    def take(self, entry: Entry) -> None:
        path = entry.path
        laid = self._laid.get(path)
        if laid is not None and entry.kind == "file" and (entry.data, entry.mode) == (laid.data, laid.mode):
            return
        if self._is_dropped(path):
            return
        # A root that the image lacks is made with the container, or with the first file laid below it.
        if entry.kind == "dir" and (entry.existed or path in self._laid_folders or path in self._roots):
            return
        existed = entry.existed or laid is not None
        how: Literal["added", "modified", "deleted"] = (
            "deleted" if entry.kind == "deleted" else "modified" if existed else "added"
        )
        if entry.kind == "deleted":
            self._thinned.update(_folders(path))
        reason = self._reason(entry, existed)
        if reason is None:
            self.kept.append(entry)
            return
        # An added folder inside a protected place is only the way to what was added there.
        if entry.kind == "dir" and reason == "protected":
            return
        if entry.kind == "dir":
            self._dropped_folders.add(path)
        self.drop(path, reason, how)

    def missing(self, seen: set[str]) -> None:
        """Files that were laid in and are there no more: nothing of the image is left to show it."""
        for path in sorted(self._laid):
            if path not in seen and any(_under(path, root) for root in self._roots):
                self.take(Entry(path, "deleted", existed=True))

    def leave(self, path: str, reason: DropReason, how: Literal["added", "modified", "deleted"]) -> None:
        """Drop what was not even read, unless a folder above it is dropped anyway."""
        if not self._is_dropped(path):
            self.drop(path, reason, how)

    def _is_dropped(self, path: str) -> bool:
        return any(folder in self._dropped_folders for folder in _folders(path))

    def drop(self, path: str, reason: DropReason, how: Literal["added", "modified", "deleted"]) -> None:
        self.dropped.append(Dropped(path, reason, how))

    def _reason(self, entry: Entry, existed: bool) -> DropReason | None:
        path = entry.path
        if any(_under(path, place) for place in RESERVED):
            return "reserved"
        # A root may be a single file, but no folder's place is taken by one.
        if entry.kind == "special" or (path in self._roots and (entry.kind != "file" or path in self._thinned)):
            return "special"
        root = next(root for root in self._roots if _under(path, root))
        rel = path[len(root.rstrip("/")) :].strip("/")
        parts = rel.split("/")
        if any(part in _VCS for part in parts):
            return "vcs"
        if parts[-1].endswith((".pyc", ".pyo")) or (not existed and any(part in _CACHES for part in parts)):
            return "cache"
        if path in self._gold:
            return None
        # A link or file may stand where a protected folder was, hence the second form.
        if self._protected.match_file(rel) or self._protected.match_file(rel + "/"):
            return "protected"
        if self._built or existed:
            return None
        if parts[-1] in _BUILT and entry.kind == "dir" or parts[-1].endswith(_BUILT_SUFFIXES):
            return "build"
        return None


def _folders(path: str) -> list[str]:
    """The folders above an absolute path, nearest first, the root excluded."""
    found = []
    while path := path.rpartition("/")[0]:
        found.append(path)
    return found


def _under(path: str, root: str) -> bool:
    return root == "/" or path == root or path.startswith(root.rstrip("/") + "/")


def _compact(index: object) -> bytes:
    return json.dumps(index, separators=(",", ":")).encode()


def _row(entry: Entry) -> list[object]:
    content = base64.b64encode(entry.data).decode()
    return [_name(entry.path), entry.kind, entry.mode, entry.uid, entry.gid, entry.existed, content]


def _entry(row: list[Any]) -> Entry:
    path, kind, mode, uid, gid, existed, content = row
    return Entry(_path(path), kind, mode, base64.b64decode(content), uid, gid, existed)


def _name(path: str) -> str:
    return os.fsencode(path).decode("latin-1")


def _path(name: str) -> str:
    return os.fsdecode(name.encode("latin-1"))
