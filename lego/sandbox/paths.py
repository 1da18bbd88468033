"""Where the private podman store and its short-lived runtime files live."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from lego.errors import SandboxError
from lego.processes import boot_id

STORE_VARIABLE = "LEGO_STORE"


@dataclass(frozen=True)
class StorePaths:
    """`store` holds images and layers and lasts; `run` holds locks, sockets and container state, and is new after
    each boot, as podman needs it to be. Socket paths are limited to 108 bytes, so `run` is kept short."""

    store: Path
    run: Path

    @property
    def graph(self) -> Path:
        return self.store / "graph"

    @property
    def conf(self) -> Path:
        return self.store / "conf"

    @property
    def runroot(self) -> Path:
        return self.run / "root"

    @property
    def tmp(self) -> Path:
        return self.run / "tmp"

    @property
    def sockets(self) -> Path:
        return self.run / "s"


def default_store() -> Path:
    """$LEGO_STORE, else /var/lib/lego/store for root, else the user's data folder."""
    named = os.environ.get(STORE_VARIABLE)
    if named:
        return Path(named)
    if os.geteuid() == 0:
        return Path("/var/lib/lego/store")
    data = os.environ.get("XDG_DATA_HOME")
    return (Path(data) if data else Path.home() / ".local/share") / "lego/store"


def store_paths(store: Path | None) -> StorePaths:
    """Create the folders of a store. Raises SandboxError when they cannot be created."""
    home = (store or default_store()).expanduser().absolute()
    key = hashlib.sha256(f"{boot_id()}:{home}".encode()).hexdigest()[:10]
    paths = StorePaths(home, _runtime_base() / key)
    try:
        for folder in (paths.store, paths.graph, paths.conf, paths.run, paths.runroot, paths.tmp, paths.sockets):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The agent's user must reach its socket through this folder; nothing in it can be listed.
        paths.run.chmod(0o711)
        paths.sockets.chmod(0o711)
    except OSError as error:
        raise SandboxError(
            f"the podman store {home} cannot be created: {error}",
            hint=f"set sandbox.store or {STORE_VARIABLE} to a folder you can write",
        ) from error
    return paths


def _runtime_base() -> Path:
    """A folder of this user's own, on a short path, closed to others."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    candidates = [Path(given) / "lego"] if given else []
    candidates += [Path("/run/lego")] if os.geteuid() == 0 else []
    candidates.append(Path(f"/tmp/lego-{os.geteuid()}"))
    for base in candidates:
        if len(str(base)) > 60:
            continue
        try:
            base.mkdir(mode=0o711, exist_ok=True)
            info = base.lstat()
        except OSError:
            continue
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022:
            return base
    raise SandboxError(
        "no private folder for sockets: " + ", ".join(map(str, candidates)),
        hint="set XDG_RUNTIME_DIR to a folder of yours, mode 0700, with a short path",
    )
