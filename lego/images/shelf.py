"""What lies in the store: listing, last use, quota, and the ways an image takes to another machine."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from lego.errors import ImageError
from lego.images.keys import REPOSITORY
from lego.images.storage import labels, stored, taken
from lego.sandbox.podman import Podman

_NOT_REDISTRIBUTABLE = "lego.redistributable"


@dataclass(frozen=True)
class Shelved:
    """One of lego's images. `bytes` counts its layers, shared ones too; `used` is when a command last wanted it, in
    seconds since the epoch. `redistributable`: whether it may be handed on."""

    tag: str
    kind: str
    bytes: int
    used: float
    redistributable: bool


@dataclass(frozen=True)
class Moved:
    """Tags that were handed on or taken in, and those that were held back because they may not be handed on."""

    tags: tuple[str, ...]
    held_back: tuple[str, ...] = ()


class Shelf:
    """The images of one store."""

    def __init__(self, podman: Podman) -> None:
        self._podman = podman
        self._marks = podman.paths.store / "images"
        self._marks.mkdir(exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """Tag -> bytes with all layers, of every image in the store, whoever made it."""
        return {one.tag: one.bytes for one in stored(self._podman.paths.graph)}

    def images(self) -> list[Shelved]:
        """lego's own images, by kind, the longest unused first."""
        found = []
        graph = self._podman.paths.graph
        for one in stored(graph):
            kind = one.tag.removeprefix(f"{REPOSITORY}-").partition(":")[0]
            if one.tag.startswith(f"{REPOSITORY}-") and kind in ("base", "task", "verifier", "runtime"):
                used = self._used_at(one.tag) or one.created
                free = labels(graph, one.id).get(_NOT_REDISTRIBUTABLE) != "false"
                found.append(Shelved(one.tag, kind, one.bytes, used, free))
        return sorted(found, key=lambda image: (image.kind, image.used, image.tag))

    def used(self, tag: str) -> None:
        """Note that an image is wanted now."""
        self._mark(tag).touch()

    def unused(self, kept: Collection[str], since: float) -> list[Shelved]:
        """Images not wanted for `since` seconds and not among `kept`. A base goes only when nothing stands on it that
        stays: it is not listed while any task or runtime image remains."""
        images = self.images()
        latest = time.time() - since
        out = [one for one in images if one.tag not in kept and one.used < latest and one.kind != "base"]
        if len(out) == sum(one.kind != "base" for one in images):
            out += [one for one in images if one.tag not in kept and one.used < latest and one.kind == "base"]
        return out

    def remove(self, images: Iterable[Shelved]) -> list[str]:
        """Remove images; the tags that are gone. One that a container stands on stays."""
        gone = []
        for image in images:
            if self._podman.cli("rmi", image.tag, check=False).returncode == 0:
                self._mark(image.tag).unlink(missing_ok=True)
                gone.append(image.tag)
        return gone

    def check_quota(self, quota: int) -> None:
        """Raises ImageError when the layers in the store take more than `quota` bytes; 0 is no quota."""
        if quota and (taken := self.taken()) >= quota:
            raise ImageError(
                f"the images take {taken / 2**30:.1f} GiB, and images.quota is {quota / 2**30:.1f}",
                hint="lego gc --images removes what no run needs; or raise images.quota",
            )

    def taken(self) -> int:
        """Bytes of all layers in the store, each counted once."""
        return taken(self._podman.paths.graph)

    def export(self, tags: Collection[str], archive: Path, *, proprietary: bool = False) -> Moved:
        """Write images into one tar, layers that they share once. Raises ImageError for one that is not there, and
        where nothing may be handed on."""
        moved = self._cleared(tags, proprietary)
        aside = archive.with_name(f"{archive.name}.part")
        aside.unlink(missing_ok=True)
        try:
            self._podman.cli(
                "save", "--quiet", "--multi-image-archive", "--format=docker-archive",
                "--output", str(aside.absolute()), *moved.tags,
            )  # fmt: skip
            aside.replace(archive)
        finally:
            aside.unlink(missing_ok=True)
        return moved

    def take_in(self, archive: Path) -> Moved:
        """Load what `export` wrote; the tags in it. Raises ImageError where that is no such file."""
        tags = _tags_in(archive)
        self._podman.check_disk()
        self._podman.cli("load", "--quiet", "--input", str(archive.absolute()))
        for tag in tags:
            self.used(tag)
        return Moved(tags)

    def push(self, tags: Collection[str], registry: str, *, proprietary: bool = False) -> Moved:
        """Copy images to a registry (HOST/FOLDER) or a folder (dir:FOLDER). Raises as `export` does, and SandboxError
        in podman's words where the registry refuses."""
        moved = self._cleared(tags, proprietary)
        for tag in moved.tags:
            target = _place(registry, tag)
            if target.startswith("dir:"):
                Path(target.removeprefix("dir:")).mkdir(parents=True, exist_ok=True)
            self._podman.cli("push", "--quiet", tag, target)
        return moved

    def pull(self, tags: Collection[str], registry: str) -> Moved:
        """Fetch those of `tags` that are missing here and there to be had."""
        here, came = self.sizes(), []
        for tag in sorted(set(tags) - set(here)):
            self._podman.check_disk()
            done = self._podman.cli("pull", "--quiet", _place(registry, tag), check=False)
            if done.returncode == 0:
                self._podman.cli("tag", done.stdout.decode().split()[-1], tag)
                self.used(tag)
                came.append(tag)
        return Moved(tuple(came))

    def _cleared(self, tags: Collection[str], proprietary: bool) -> Moved:
        here = {image.tag: image for image in self.images()}
        others = set(self.sizes())
        if missing := sorted(set(tags) - set(here) - others):
            raise ImageError(
                f"{len(missing)} of {len(tags)} images are not in the store: {missing[0]}", hint="run lego build-images"
            )
        held = () if proprietary else tuple(t for t in sorted(tags) if t in here and not here[t].redistributable)
        free = tuple(sorted(set(tags) - set(held)))
        if not free:
            raise ImageError(
                "none of these images may be handed on",
                hint="--with-proprietary does it all the same, where the maker's terms let you",
                fault="user",
            )
        return Moved(free, held)

    def _mark(self, tag: str) -> Path:
        return self._marks / f"{tag.rpartition('/')[2].replace(':', '-')}.used"

    def _used_at(self, tag: str) -> float | None:
        try:
            return self._mark(tag).stat().st_mtime
        except OSError:
            return None


def _tags_in(archive: Path) -> tuple[str, ...]:
    try:
        with tarfile.open(archive) as tar:
            listing = tar.extractfile("manifest.json")
            rows = json.loads(listing.read()) if listing is not None else []
            return tuple(sorted(tag for row in rows for tag in row["RepoTags"] or ()))
    except (OSError, tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise ImageError(f"{archive} is no archive of images: {error}", fault="user") from error


def _place(registry: str, tag: str) -> str:
    name = tag.rpartition("/")[2]
    if registry.startswith("dir:"):
        return f"{registry.rstrip('/')}/{name.replace(':', '-')}"
    return f"docker://{registry.rstrip('/')}/{name}"
