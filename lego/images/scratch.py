"""Folders that last as long as one build: its context, and what it is lent. A killed owner's are swept."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lego.sandbox.podman import Podman
from lego.sandbox.reaper import Owner


@contextmanager
def scratch(podman: Podman) -> Iterator[Path]:
    """A folder of this user's alone, on the store's file system, which has room for images; gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=f"{Owner.current().tag}.", dir=_home(podman)) as name:
        yield Path(name)


def sweep(podman: Podman) -> int:
    """Remove what dead owners left (contexts, copies of the host's configuration); how many folders that were."""
    swept = 0
    for folder in _home(podman).iterdir():
        owner = Owner.parse(folder.name.partition(".")[0])
        if owner is not None and not owner.alive():
            shutil.rmtree(folder, ignore_errors=True)
            swept += 1
    return swept


def _home(podman: Podman) -> Path:
    home = podman.paths.store / "building"
    home.mkdir(mode=0o700, exist_ok=True)
    return home
