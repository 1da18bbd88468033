"""Folders that last as long as one build: its context, and what it is lent. A killed owner's are swept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from lego.errors import ImageError
from lego.processes import kill, session, with_argument
from lego.sandbox.podman import Podman
from lego.sandbox.reaper import Owner
from lego.tasks.task import Tree


@contextmanager
def scratch(podman: Podman) -> Iterator[Path]:
    """A folder of this user's alone, on the store's file system, which has room for images; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"{Owner.current().tag}.", dir=_home(podman)) as name:
        yield Path(name)


def sweep(podman: Podman) -> int:
    """Remove what dead owners left (contexts, copies of the host's configuration) and end the builds that still read
    it; how many folders that were."""
    swept = 0
    for folder in _home(podman).iterdir():
        owner = Owner.parse(folder.name.partition(".")[0])
        if owner is not None and not owner.alive():
            for pid in with_argument(f"{folder}/"):
                kill(session(pid))
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def sweep_builds(podman: Podman, *, dry_run: bool = False) -> list[str]:
    """Remove the containers in which podman ran the steps of builds that were killed, and return their ids.

    Nothing is removed while anybody builds into this store. What was listed before that was found out is of builds
    that had begun by then, so that none which begins meanwhile loses its container.
    """
    listed = podman.cli("ps", "--all", "--external", "--format", "{{.ID}} {{.Status}}").stdout.decode()
    left = [name for name, _, status in (line.partition(" ") for line in listed.splitlines()) if status == "Storage"]
    owners = [Owner.parse(folder.name.partition(".")[0]) for folder in _home(podman).iterdir()]
    if any(owner is not None and owner.alive() for owner in owners):
        return []
    if left and not dry_run:
        podman.cli("rm", "--force", *left, check=False)
    return left


def write_tree(tree: Tree, folder: Path) -> None:
    """Lay a tree down under `folder`, with fixed times, so that equal content gives equal layers."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, file in tree.items():
        relative = PurePosixPath(path)
        if relative.is_absolute() or ".." in relative.parts:
            raise ImageError(f"{path}: not a path inside the build context", fault="task")
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.data)
        target.chmod(file.mode)
        os.utime(target, (0, 0))


def _home(podman: Podman) -> Path:
    home = podman.paths.store / "building"
    home.mkdir(mode=0o700, exist_ok=True)
    return home
