"""Content-hash keys: an image is named by everything that decides what is in it, so a name is never stale."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from lego.config.schema import ImagesSection
from lego.errors import ImageError
from lego.tasks.task import Tree

REPOSITORY = "localhost/lego"
_TAG_LENGTH = 20


def digest(*parts: str | bytes) -> str:
    """sha256 hex over parts, each with its length, so that no two lists of parts collide."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def tree_digest(tree: Tree) -> str:
    """sha256 hex over paths, permission bits and contents, in path order."""
    parts: list[str | bytes] = []
    for path in sorted(tree):
        parts += [path, f"{tree[path].mode & 0o7777:o}", tree[path].data]
    return digest(*parts)


def tag(kind: str, key: str) -> str:
    return f"{REPOSITORY}-{kind}:{key[:_TAG_LENGTH]}"


def base_key(section: ImagesSection) -> str:
    """Key of the run's base image. Which mirror the packages come from does not enter it."""
    kind, name = split_base(section.base)
    if kind == "debian":
        return digest("debian", name, *sorted(section.packages), DEBIAN_RECIPE)
    if kind == "registry":
        return digest("registry", name)
    path = Path(name).expanduser()
    try:
        return _file_key(path, path.stat().st_mtime_ns)
    except OSError as error:
        raise ImageError(f"images.base: cannot read {name}: {error}", fault="user") from error


@functools.lru_cache(maxsize=4)
def _file_key(path: Path, changed_ns: int) -> str:
    """Reads the file once; `changed_ns` makes the cache notice another file in its place."""
    with path.open("rb") as file:
        return digest("rootfs", hashlib.file_digest(file, "sha256").digest())


def base_tag(section: ImagesSection) -> str:
    kind, name = split_base(section.base)
    return name if kind == "registry" else tag("base", base_key(section))


def split_base(base: str) -> tuple[str, str]:
    """`debian:SUITE`, `registry:NAME` or `rootfs:TAR` as (kind, rest)."""
    kind, _, name = base.partition(":")
    if kind not in ("debian", "registry", "rootfs") or not name:
        raise ImageError(
            f"images.base: {base!r} is not a base image",
            hint="write debian:SUITE (built from packages), registry:NAME (pulled) or rootfs:TAR (imported)",
            fault="user",
        )
    return kind, name


DEBIAN_RECIPE = "1"
"""Raised whenever bases.py builds a Debian base differently."""
