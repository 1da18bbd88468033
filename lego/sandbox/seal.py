"""What a sealed container may talk to: one socket, in a folder of its own."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lego.sandbox.paths import StorePaths
from lego.sandbox.reaper import Owner

INSIDE = "/run/lego"
SOCKET = "proxy.sock"
_COUNT = itertools.count()


@dataclass(frozen=True)
class Seal:
    """`folder` on the host is seen read-only as INSIDE by the container; the proxy puts SOCKET in it, mode 0666."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / SOCKET


@contextlib.contextmanager
def seal(paths: StorePaths) -> Iterator[Seal]:
    """A socket folder for one trial, gone afterwards."""
    with lent_folder(paths) as folder:
        yield Seal(folder)


@contextlib.contextmanager
def lent_folder(paths: StorePaths) -> Iterator[Path]:
    """A folder that a container may see, gone afterwards. Its name tells the reaper who owns it."""
    folder = paths.sockets / f"{Owner.current().tag}-{next(_COUNT)}"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
