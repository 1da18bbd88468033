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
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["file", "link", "dir", "deleted", "special"]
_LINKS = 40
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect", "user.overlay.redirect")


@dataclass(frozen=True)
class Entry:
    """One path of a root file system. `path` is absolute, odd bytes kept by surrogateescape.

    `data` is a file's content or a link's target. `uid` and `gid` are the container's; None leaves them to whoever
    lays the entry. `existed`: the image has this path. A deleted folder follows the deletions of what it held, and
    is only removed if it is empty by then.
    """

    path: str
    kind: Kind
    mode: int = 0o644
    data: bytes = b""
    uid: int | None = None
    gid: int | None = None
    existed: bool = False


@dataclass(frozen=True)
class LayJob:
    """Write `entries` in order. `owner` names the user whose ids entries without ids get: a name or number, with
    an optional group, as `podman run --user`. What would replace a folder that is not empty is left out.
    `folders` are made where nothing, or no folder, is there afterwards: a container cannot start without its own."""

    merged: str
    shift: int
    entries: Sequence[Entry]
    owner: str = ""
    folders: Sequence[str] = ()


@dataclass(frozen=True)
class ChangesJob:
    """Read what changed under `roots`; `skip` are absolute paths left out. Files over `file_cap` bytes, and files
    after `total_cap` bytes in all, come without data and are named in Changes.oversize."""

    merged: str
    upper: str
    lowers: Sequence[str]
    shift: int
    roots: Sequence[str]
    skip: frozenset[str] = frozenset()
    file_cap: int = 16 << 20
    total_cap: int = 64 << 20


@dataclass
class Changes:
    entries: list[Entry] = field(default_factory=list)
    oversize: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ReadJob:
    """Read regular files (absolute paths), at most `cap` bytes of each."""

    merged: str
    paths: Sequence[str]
    cap: int = 1 << 20


Job = LayJob | ChangesJob | ReadJob


def perform(job: Job) -> object:
    """Do one job in this process. Raises OSError where the files cannot be reached."""
    if isinstance(job, LayJob):
        _lay(job)
        return None
    if isinstance(job, ChangesJob):
        return _changes(job)
    return {path: _read(job.merged, path, job.cap) for path in job.paths}


def main() -> None:
    """Read a pickled job from stdin and write its pickled result to stdout; only our own process is on the line."""
    pickle.dump(perform(pickle.load(sys.stdin.buffer)), sys.stdout.buffer)


# --- resolving inside the root ---------------------------------------------------------------------------------


class _Walker:
    """Open folders of a root by path; links are resolved as the container would see them."""

    def __init__(self, root: str, *, create: tuple[int, int] | None = None) -> None:
        self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self._create = create

    def __enter__(self) -> _Walker:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def parent(self, path: str, *, follow: bool = False) -> Iterator[tuple[int, str]]:
        """The folder descriptor and last name of `path`; with `follow`, a link at the end is resolved too.

        The name is "." for the root itself.
        """
        stack = [os.dup(self._root)]
        todo = [part for part in path.split("/") if part]
        links = 0
        try:
            while todo:
                part = todo.pop(0)
                if part == ".":
                    continue
                if part == "..":
                    if len(stack) > 1:
                        os.close(stack.pop())
                    continue
                if not todo and not follow:
                    yield stack[-1], part
                    return
                try:
                    info = os.stat(part, dir_fd=stack[-1], follow_symlinks=False)
                except FileNotFoundError:
                    if not todo:
                        yield stack[-1], part
                        return
                    self._make(part, stack[-1])
                    info = os.stat(part, dir_fd=stack[-1], follow_symlinks=False)
                if stat.S_ISLNK(info.st_mode):
                    links += 1
                    if links > _LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                    target = os.readlink(part, dir_fd=stack[-1])
                    if target.startswith("/"):
                        while len(stack) > 1:
                            os.close(stack.pop())
                    todo = [piece for piece in target.split("/") if piece] + todo
                    continue
                if not todo:
                    yield stack[-1], part
                    return
                stack.append(os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=stack[-1]))
            yield stack[-1], "."
        finally:
            for handle in stack:
                os.close(handle)

    def _make(self, name: str, folder: int) -> None:
        if self._create is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        os.mkdir(name, 0o755, dir_fd=folder)
        os.chown(name, *self._create, dir_fd=folder, follow_symlinks=False)


# --- laying files in -------------------------------------------------------------------------------------------


def _lay(job: LayJob) -> None:
    uid, gid = _ids(job.merged, job.owner)
    # The storage library gives imported images a root folder nobody may write; images elsewhere have 0755, and root
    # without capabilities has nothing to override it with.
    if stat.S_IMODE(os.lstat(job.merged).st_mode) == 0o555:
        os.chmod(job.merged, 0o755)
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
            uid, gid = int(row[2]), int(row[3])
            break
    else:
        if user and not user.isdigit():
            raise OSError(errno.EINVAL, f"no user {user!r} in the image's /etc/passwd")
    if group.isdigit():
        gid = int(group)
    elif group:
        gid = next((int(row[2]) for row in _rows(merged, "/etc/group") if row[0] == group), gid)
    return uid, gid


def _rows(merged: str, path: str) -> list[list[str]]:
    text = (_read(merged, path, 1 << 20) or b"").decode(errors="replace")
    return [line.split(":") for line in text.splitlines() if ":" in line]


# --- reading out -----------------------------------------------------------------------------------------------


def _read(merged: str, path: str, cap: int) -> bytes | None:
    """A regular file's first `cap` bytes; None where there is none. Links inside the root are followed."""
    try:
        with _Walker(merged) as walker, walker.parent(path, follow=True) as (folder, name):
            mode = _mode(folder, name)
            if mode is None or not stat.S_ISREG(mode):
                return None
            with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), "rb") as file:
                return file.read(cap)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def _changes(job: ChangesJob) -> Changes:
    """The upper folder says what changed; the merged root says what it is now, since an upper file may hold only
    metadata and an upper folder may stand for a moved one."""
    found = Changes()
    budget = [job.total_cap]
    for root in job.roots:
        rel = root.strip("/")
        upper, merged = os.path.join(job.upper, rel), os.path.join(job.merged, rel)
        if _links_above(job.merged, rel):
            found.entries.append(Entry(root, "special", existed=True))
            continue
        if os.path.lexists(upper):
            _visit(job, upper, merged, "/" + rel, found, budget)
    return found


def _links_above(merged: str, rel: str) -> bool:
    """Whether a folder on the way to a root is a link now: nothing below it is the root's any more."""
    parts = rel.split("/")
    return any(os.path.islink(os.path.join(merged, *parts[:count])) for count in range(1, len(parts)))


def _visit(
    job: ChangesJob, upper: str, merged: str, path: str, found: Changes, budget: list[int], whole: bool = False
) -> None:
    """`whole`: the upper folder above hides the image's; what is there now is all there is."""
    if path in job.skip:
        return
    info = os.lstat(merged if whole else upper)
    if not whole and _is_whiteout(info):
        _deleted(job, path, found)
        return
    lower = _in_lowers(job.lowers, path)
    ids = max(info.st_uid - job.shift, 0), max(info.st_gid - job.shift, 0)
    mode, existed = stat.S_IMODE(info.st_mode), lower is not None
    if lower is not None and stat.S_ISDIR(lower) and not stat.S_ISDIR(info.st_mode):
        for name in _lower_names(job.lowers, path):
            _deleted(job, f"{path}/{name}", found)
    if stat.S_ISLNK(info.st_mode):
        target = os.fsencode(os.readlink(merged))
        found.entries.append(Entry(path, "link", 0o777, target, *ids, existed=existed))
    elif stat.S_ISREG(info.st_mode):
        size = os.lstat(merged).st_size
        if size > job.file_cap or size > budget[0]:
            found.oversize.append(path)
            return
        with open(os.open(merged, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(job.file_cap)
        budget[0] -= len(data)
        found.entries.append(Entry(path, "file", mode, data, *ids, existed=existed))
    elif stat.S_ISDIR(info.st_mode):
        existed = lower is not None and stat.S_ISDIR(lower)
        found.entries.append(Entry(path, "dir", mode, b"", *ids, existed=existed))
        whole = whole or _marked(upper, _OPAQUE) or _marked(upper, _REDIRECT)
        names = sorted(os.listdir(merged if whole else upper))
        if whole and existed:
            for name in sorted(set(_lower_names(job.lowers, path)) - set(names)):
                _deleted(job, f"{path}/{name}", found)
        for name in names:
            _visit(
                job,
                os.path.join(upper, name),
                os.path.join(merged, name),
                f"{path.rstrip('/')}/{name}",
                found,
                budget,
                whole,
            )
    else:
        found.entries.append(Entry(path, "special", mode, b"", *ids, existed=existed))


def _deleted(job: ChangesJob, path: str, found: Changes) -> None:
    """Everything the image had at `path`, folders after what they held."""
    mode = _in_lowers(job.lowers, path)
    if mode is None or path in job.skip:
        return
    if stat.S_ISDIR(mode):
        for name in _lower_names(job.lowers, path):
            _deleted(job, f"{path}/{name}", found)
    found.entries.append(Entry(path, "deleted", existed=True))


def _marked(path: str, names: Sequence[str]) -> bool:
    for name in names:
        with contextlib.suppress(OSError):
            if os.getxattr(path, name, follow_symlinks=False):
                return True
    return False


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _in_lowers(lowers: Sequence[str], path: str) -> int | None:
    """The mode of `path` in the image, or None: the first layer that says anything about it, or about a folder
    above it, decides."""
    for at, hidden in _lower_places(lowers, path):
        if at is not None:
            return at.lstat().st_mode
        if hidden:
            return None
    return None


def _lower_names(lowers: Sequence[str], path: str) -> list[str]:
    """The names in a folder of the image, all layers together."""
    names: dict[str, bool] = {}
    for at, hidden in _lower_places(lowers, path):
        if at is not None:
            if not at.is_dir() or at.is_symlink():
                break
            for child in os.scandir(at):
                names.setdefault(child.name, not _is_whiteout(child.stat(follow_symlinks=False)))
        if hidden:
            break
    return sorted(name for name, there in names.items() if there)


def _lower_places(lowers: Sequence[str], path: str) -> Iterator[tuple[Path | None, bool]]:
    """For each layer, top first: where `path` is in it, if it is, and whether it hides the layers below."""
    parts = [part for part in path.split("/") if part]
    for lower in lowers:
        at, hidden, there = Path(lower), False, True
        for part in parts:
            at = at / part
            try:
                info = at.lstat()
            except FileNotFoundError:
                there = False
                break
            if not stat.S_ISDIR(info.st_mode):
                # A whiteout, or a file or link in the place of a folder, ends what lies below it.
                hidden, there = True, not _is_whiteout(info) and at == Path(lower, *parts)
                break
            hidden = hidden or _marked(str(at), _OPAQUE)
        yield (at if there else None), hidden


if __name__ == "__main__":
    main()
