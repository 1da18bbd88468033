"""What a container changed, read from the layers of its overlay from outside.

The upper folder says what changed; the merged root says what it is now, since an upper file may hold only metadata and
an upper folder may stand for a moved one.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Kind = Literal["file", "link", "dir", "deleted", "special"]
_OPAQUE = ("trusted.overlay.opaque", "user.overlay.opaque")
_REDIRECT = ("trusted.overlay.redirect", "user.overlay.redirect")
_DEEPEST, _LONGEST = 64, 2048
"""Folders above a path, and bytes of it. Far more than any project has, and far less than what the host can name and
walk: an agent may nest folders without end."""


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
class ChangesJob:
    """Read what changed under `roots`; `skip` are absolute paths left out. Files over `file_cap` bytes, and files
    after `total_cap` bytes in all, come without data and are named in Changes.oversize. What the image had comes along
    up to `original_cap` bytes a file and `originals_cap` in all."""

    merged: str
    upper: str
    lowers: Sequence[str]
    shift: int
    roots: Sequence[str]
    skip: frozenset[str] = frozenset()
    file_cap: int = 16 << 20
    total_cap: int = 64 << 20
    original_cap: int = 1 << 20
    originals_cap: int = 16 << 20


@dataclass
class Changes:
    """`originals`: the image's files and links that are others now, or gone, by path; too large ones are left out.
    `too_deep`: paths with more than 64 folders above them, or of more than 2048 bytes; nothing below them was looked
    at."""

    entries: list[Entry] = field(default_factory=list)
    oversize: list[str] = field(default_factory=list)
    too_deep: list[str] = field(default_factory=list)
    originals: dict[str, Entry] = field(default_factory=dict)


@dataclass
class _Room:
    """Bytes that may still be taken in: of changed files, and of what the image had in their place."""

    files: int
    originals: int


def changes(job: ChangesJob) -> Changes:
    """The upper folder says what changed; the merged root says what it is now, since an upper file may hold only
    metadata and an upper folder may stand for a moved one."""
    found = Changes()
    room = _Room(job.total_cap, job.originals_cap)
    for root in job.roots:
        rel = root.strip("/")
        upper, merged = os.path.join(job.upper, rel), os.path.join(job.merged, rel)
        if _links_above(job.merged, rel):
            found.entries.append(Entry(root, "special", existed=True))
            continue
        if os.path.lexists(upper):
            _visit(job, upper, merged, "/" + rel, found, room)
    return found


def _links_above(merged: str, rel: str) -> bool:
    """Whether a folder on the way to a root is a link now: nothing below it is the root's any more."""
    parts = rel.split("/")
    return any(os.path.islink(os.path.join(merged, *parts[:count])) for count in range(1, len(parts)))


def _visit(
    job: ChangesJob, upper: str, merged: str, path: str, found: Changes, room: _Room, whole: bool = False
) -> None:
    """`whole`: the upper folder above hides the image's; what is there now is all there is."""
    if path in job.skip:
        return
    if path.count("/") > _DEEPEST or len(os.fsencode(path)) > _LONGEST:
        found.too_deep.append(path)
        return
    info = os.lstat(merged if whole else upper)
    if not whole and _is_whiteout(info):
        _deleted(job, path, found, room)
        return
    lower = _in_lowers(job.lowers, path)
    ids = max(info.st_uid - job.shift, 0), max(info.st_gid - job.shift, 0)
    mode, existed = stat.S_IMODE(info.st_mode), lower is not None
    if lower is not None and stat.S_ISDIR(lower) and not stat.S_ISDIR(info.st_mode):
        for name in _lower_names(job.lowers, path):
            _deleted(job, f"{path}/{name}", found, room)
    if stat.S_ISLNK(info.st_mode):
        target = os.fsencode(os.readlink(merged))
        found.entries.append(Entry(path, "link", 0o777, target, *ids, existed=existed))
        _keep_original(job, path, found, room)
    elif stat.S_ISREG(info.st_mode):
        size = os.lstat(merged).st_size
        if size > job.file_cap or size > room.files:
            found.oversize.append(path)
            return
        with open(os.open(merged, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            data = file.read(job.file_cap)
        room.files -= len(data)
        found.entries.append(Entry(path, "file", mode, data, *ids, existed=existed))
        _keep_original(job, path, found, room)
    elif stat.S_ISDIR(info.st_mode):
        existed = lower is not None and stat.S_ISDIR(lower)
        found.entries.append(Entry(path, "dir", mode, b"", *ids, existed=existed))
        whole = whole or _marked(upper, _OPAQUE) or _marked(upper, _REDIRECT)
        names = sorted(os.listdir(merged if whole else upper))
        if whole and existed:
            for name in sorted(set(_lower_names(job.lowers, path)) - set(names)):
                _deleted(job, f"{path}/{name}", found, room)
        for name in names:
            _visit(
                job,
                os.path.join(upper, name),
                os.path.join(merged, name),
                f"{path.rstrip('/')}/{name}",
                found,
                room,
                whole,
            )
    else:
        found.entries.append(Entry(path, "special", mode, b"", *ids, existed=existed))


def _deleted(job: ChangesJob, path: str, found: Changes, room: _Room) -> None:
    """Everything the image had at `path`, folders after what they held."""
    mode = _in_lowers(job.lowers, path)
    if mode is None or path in job.skip:
        return
    if stat.S_ISDIR(mode):
        for name in _lower_names(job.lowers, path):
            _deleted(job, f"{path}/{name}", found, room)
    found.entries.append(Entry(path, "deleted", existed=True))
    _keep_original(job, path, found, room)


def _keep_original(job: ChangesJob, path: str, found: Changes, room: _Room) -> None:
    at = next((at for at, hidden in _lower_places(job.lowers, path) if at is not None or hidden), None)
    if at is None:
        return
    info = at.lstat()
    if stat.S_ISLNK(info.st_mode):
        found.originals[path] = Entry(path, "link", 0o777, os.fsencode(os.readlink(at)))
    elif stat.S_ISREG(info.st_mode) and info.st_size <= min(job.original_cap, room.originals):
        found.originals[path] = Entry(path, "file", stat.S_IMODE(info.st_mode), at.read_bytes())
        room.originals -= info.st_size


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
