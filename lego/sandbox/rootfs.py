"""A container's files from outside, while nothing runs in it: lay files in, read files and changes out.

Works on the merged root that podman mounted and on the overlay's upper folder. Every path is resolved inside the
root, component by component, so no link in it can lead to the host's files. As a user without root the same code
runs in podman's user namespace (`podman unshare`), through `main`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from lego.sandbox.layers import ChangesJob, Entry, changes

_LINKS = 40
_LAST_ID = (1 << 31) - 1
UNFIT = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR, errno.EEXIST, errno.EINVAL)
)
"""What a job fails with because of what lies in the container, and not because the host's files cannot be reached."""


@dataclass(frozen=True)
class LayJob:
    """Write `entries` in order. `owner` names the user whose ids entries without ids get: a name or number, with
    an optional group, as `podman run --user`. What would replace a folder that is not empty is left out.
    `folders` are made where nothing, or no folder, is there afterwards: a container cannot start without its own.
    What lies in the folders `emptied` goes before that; the file `script`, if there is one, may be executed
    afterwards."""

    merged: str
    shift: int
    entries: Sequence[Entry]
    owner: str = ""
    folders: Sequence[str] = ()
    emptied: Sequence[str] = ()
    script: str = ""


@dataclass(frozen=True)
class ReadJob:
    """Read regular files (absolute paths), at most `cap` bytes of each."""

    merged: str
    paths: Sequence[str]
    cap: int = 1 << 20


@dataclass(frozen=True)
class TreeJob:
    """Read all that lies at `sources` (absolute paths of files or folders), less what matches their patterns
    (`exclude`, one tuple a source, as tar --exclude takes them) and what does not fit into `cap` bytes in all."""

    merged: str
    sources: Sequence[str]
    exclude: Sequence[Sequence[str]]
    cap: int = 128 << 20


@dataclass
class Carried:
    """`entries` without owners or special bits, `folders` those of the sources that are folders. `left_out`: paths over
    the cap, special files, and links that lead out of their source."""

    entries: list[Entry] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


Job = LayJob | ChangesJob | ReadJob | TreeJob


def perform(job: Job) -> object:
    """Do one job in this process. Raises OSError where the files cannot be reached."""
    if isinstance(job, LayJob):
        _lay(job)
        return None
    if isinstance(job, ChangesJob):
        return changes(job)
    if isinstance(job, TreeJob):
        return _carried(job)
    return {path: _read(job.merged, path, job.cap) for path in job.paths}


def main() -> None:
    """Read a pickled job from stdin and write its pickled result, or the OSError it ended with, to stdout; only our own
    process is on the line."""
    try:
        result = perform(pickle.load(sys.stdin.buffer))
    except OSError as error:
        result = error
    pickle.dump(result, sys.stdout.buffer)


# --- resolving inside the root ---------------------------------------------------------------------------------


class _Walker:
    """Open folders of a root by path; links are resolved as the container would see them."""

    def __init__(self, root: str, *, create: tuple[int, int] | None = None) -> None:
        try:
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            # A number that is not in UNFIT: nothing that lies in a container takes its root away.
            raise OSError(errno.ESTALE, f"the container's root is not there: {error.strerror}", root) from error
        self._create = create

    def __enter__(self) -> _Walker:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._root)

    def allow_root(self) -> None:
        """The storage library gives imported images a root folder nobody may write; images elsewhere have 0755, and
        root without capabilities has nothing to override it with."""
        if stat.S_IMODE(os.fstat(self._root).st_mode) == 0o555:
            os.fchmod(self._root, 0o755)

    @contextlib.contextmanager
    def parent(self, path: str, *, follow: bool = False) -> Iterator[tuple[int, str]]:
        """The folder descriptor and last name of `path`; with `follow`, a link at the end is resolved too.

        The name is "." for the root itself. Nothing is moved meanwhile, so that `..` is the folder one came from, and
        one descriptor is enough however far a link leads.
        """
        at, depth = os.dup(self._root), 0
        todo = [part for part in path.split("/") if part]
        links = 0
        try:
            while todo:
                part = todo.pop(0)
                if part == ".":
                    continue
                if part == "..":
                    if depth:
                        at, depth = _into("..", at), depth - 1
                    continue
                if not todo and not follow:
                    yield at, part
                    return
                try:
                    info = os.stat(part, dir_fd=at, follow_symlinks=False)
                except FileNotFoundError:
                    if not todo:
                        yield at, part
                        return
                    self._make(part, at)
                    info = os.stat(part, dir_fd=at, follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    if links > _LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    target = os.readlink(part, dir_fd=at)
                    if target.startswith("/"):
                        os.close(at)
                        at, depth = os.dup(self._root), 0
                    todo = [piece for piece in target.split("/") if piece] + todo
                    continue
                if not todo:
                    yield at, part
                    return
                at, depth = _into(part, at), depth + 1
            yield at, "."
        finally:
            os.close(at)

    def _make(self, name: str, folder: int) -> None:
        if self._create is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        os.mkdir(name, 0o755, dir_fd=folder)
        os.chown(name, *self._create, dir_fd=folder, follow_symlinks=False)


def _into(name: str, folder: int) -> int:
    """A descriptor of a folder inside `folder`, or of the one above it, in the place of its own."""
    inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    os.close(folder)
    return inside


# --- laying files in -------------------------------------------------------------------------------------------


def _lay(job: LayJob) -> None:
    uid, gid = _ids(job.merged, job.owner)
    with _Walker(job.merged) as walker:
        walker.allow_root()
        for path in job.emptied:
            with contextlib.suppress(NotADirectoryError, FileNotFoundError), walker.parent(path) as (folder, name):
                _empty(folder, name)
    with _Walker(job.merged, create=(uid + job.shift, gid + job.shift)) as walker:
        for entry in job.entries:
            owner = (
                (uid if entry.uid is None else entry.uid) + job.shift,
                (gid if entry.gid is None else entry.gid) + job.shift,
            )
            try:
                with walker.parent(entry.path) as (folder, name):
                    _lay_one(folder, name, entry, owner)
            except (NotADirectoryError, FileNotFoundError):
                if entry.kind != "deleted":
                    raise
        for path in job.folders:
            with walker.parent(path, follow=True) as (folder, name):
                mode = _mode(folder, name)
                if mode is None or not stat.S_ISDIR(mode):
                    _lay_one(folder, name, Entry(path, "dir", 0o755), (uid + job.shift, gid + job.shift))
        if job.script:
            with walker.parent(job.script, follow=True) as (folder, name):
                mode = _mode(folder, name)
                if mode is not None and stat.S_ISREG(mode):
                    os.chmod(name, stat.S_IMODE(mode) | 0o555, dir_fd=folder)


def _empty(folder: int, name: str) -> None:
    """Remove what lies in a folder, and a link in its place."""
    mode = _mode(folder, name)
    if mode is None or not stat.S_ISDIR(mode):
        if mode is not None:
            os.unlink(name, dir_fd=folder)
        return
    inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        for child in os.listdir(inside):
            if stat.S_ISDIR(_mode(inside, child) or 0):
                shutil.rmtree(child, dir_fd=inside)
            else:
                os.unlink(child, dir_fd=inside)
    finally:
        os.close(inside)


def _lay_one(folder: int, name: str, entry: Entry, owner: tuple[int, int]) -> None:
    existing = _mode(folder, name)
    folder_there = existing is not None and stat.S_ISDIR(existing)
    if existing is not None and not (folder_there and entry.kind == "dir") and not _remove(folder, name, folder_there):
        return
    if entry.kind == "deleted":
        return
    if entry.kind == "dir":
        if not folder_there:
            os.mkdir(name, 0o700, dir_fd=folder)
        handle = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            os.fchown(handle, *owner)
            os.fchmod(handle, entry.mode)
        finally:
            os.close(handle)
    elif entry.kind == "link":
        os.symlink(entry.data, os.fsencode(name), dir_fd=folder)
        os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)
    elif entry.kind == "file":
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        with open(handle, "wb") as out:
            out.write(entry.data)
            os.fchown(out.fileno(), *owner)
            os.fchmod(out.fileno(), entry.mode)


def _mode(folder: int, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _remove(folder: int, name: str, is_folder: bool) -> bool:
    """Remove a file, a link or an empty folder; False where the folder still holds something."""
    if not is_folder:
        os.unlink(name, dir_fd=folder)
        return True
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        raise
    return True


def _ids(merged: str, owner: str) -> tuple[int, int]:
    """The ids of a `user[:group]`, names looked up in the container's own files."""
    user, _, group = owner.partition(":")
    uid, gid = 0, 0
    if user.isdigit():
        uid = int(user)
    for row in _rows(merged, "/etc/passwd") if user else ():
        if len(row) > 3 and user in (row[0], row[2]):
            uid, gid = _id(row[2]), _id(row[3])
            break
    else:
        if user and not user.isdigit():
            raise OSError(errno.EINVAL, f"no user {user!r} in the image's /etc/passwd")
    if group.isdigit():
        gid = int(group)
    elif group:
        gid = next((_id(row[2]) for row in _rows(merged, "/etc/group") if len(row) > 2 and row[0] == group), gid)
    return uid, gid


def _id(text: str) -> int:
    """An id out of the container's own files, which its commands may have changed."""
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _LAST_ID):
        raise OSError(errno.EINVAL, f"{text[:40]!r} is no id of a user or group")
    return int(text)


def _rows(merged: str, path: str) -> list[list[str]]:
    text = (_read(merged, path, 1 << 20) or b"").decode(errors="replace")
    return [line.split(":") for line in text.splitlines() if ":" in line]


# --- reading out -----------------------------------------------------------------------------------------------


def _read(merged: str, path: str, cap: int) -> bytes | None:
    """A regular file's first `cap` bytes; None where there is none, or none can be reached. Links inside the root are
    followed."""
    with _Walker(merged) as walker:
        try:
            with walker.parent(path, follow=True) as (folder, name):
                mode = _mode(folder, name)
                if mode is None or not stat.S_ISREG(mode):
                    return None
                with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                    return file.read(cap)
        except OSError as error:
            if error.errno in UNFIT:
                return None
            raise


def _carried(job: TreeJob) -> Carried:
    found, room = Carried(), [job.cap]
    with _Walker(job.merged) as walker:
        for source, patterns in zip(job.sources, job.exclude, strict=True):
            try:
                with walker.parent(source, follow=True) as (folder, name):
                    _carry(folder, name, source, "", patterns, found, room)
            except OSError as error:
                # A source that is not there, or whose way leads nowhere, is nothing to carry.
                if error.errno not in UNFIT:
                    raise
    return found


def _carry(
    folder: int, name: str, source: str, below: str, patterns: Sequence[str], found: Carried, room: list[int]
) -> None:
    """Take in what is at `name`, which is `below` (a relative path) the source."""
    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    path = f"{source.rstrip('/')}/{below}" if below else source
    mode = stat.S_IMODE(info.st_mode) & 0o777
    if stat.S_ISDIR(info.st_mode):
        found.entries.append(Entry(path, "dir", mode))
        if not below:
            found.folders.append(path)
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            for child in sorted(os.listdir(inside)):
                deeper = f"{below}/{child}" if below else child
                if not _excluded(deeper, patterns):
                    _carry(inside, child, source, deeper, patterns, found, room)
        finally:
            os.close(inside)
    elif stat.S_ISREG(info.st_mode) and info.st_size <= room[0]:
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
            data = file.read(room[0])
        room[0] -= len(data)
        found.entries.append(Entry(path, "file", mode, data))
    elif stat.S_ISLNK(info.st_mode) and _stays(target := os.readlink(name, dir_fd=folder), below):
        found.entries.append(Entry(path, "link", 0o777, os.fsencode(target)))
    else:
        found.left_out.append(path)


def _excluded(below: str, patterns: Sequence[str]) -> bool:
    """As tar has it: a pattern may match from any folder on, and its wildcards match slashes too."""
    parts = below.split("/")
    tails = ["/".join(parts[begin:]) for begin in range(len(parts))]
    return any(fnmatchcase(tail, pattern.rstrip("/")) for pattern in patterns for tail in tails)


def _stays(target: str, below: str) -> bool:
    """Whether a link at `below` leads to a place inside the source."""
    if target.startswith("/") or not below:
        return False
    return not os.path.normpath(os.path.join(os.path.dirname(below), target)).startswith("..")
