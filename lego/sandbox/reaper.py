"""Removing what dead owners left: containers, socket folders, service sockets."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lego.errors import SandboxError
from lego.processes import boot_id, start_time

if TYPE_CHECKING:
    from lego.sandbox.podman import Podman

APP, OWNER, RUN, TRIAL = "app", "lego.owner", "lego.run", "lego.trial"
_REMOVALS = 3


@dataclass(frozen=True)
class Owner:
    """A process, told apart from later ones of the same number by its start time (clock ticks since boot)."""

    boot: str
    pid: int
    start: int

    @classmethod
    def current(cls) -> Owner:
        return _current(os.getpid())

    @property
    def tag(self) -> str:
        return f"{self.boot}-{self.pid}-{self.start}"

    @classmethod
    def parse(cls, tag: str) -> Owner | None:
        parts = tag.split("-")
        if len(parts) != 3 or not (parts[1].isdigit() and parts[2].isdigit()):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))

    def alive(self) -> bool:
        """Whether the process still runs, in this boot."""
        return self.boot == boot_id()[:8] and start_time(self.pid) == self.start


@dataclass(frozen=True)
class Swept:
    containers: int = 0
    folders: int = 0


def sweep(podman: Podman, *, own: bool = False) -> Swept:
    """Remove what dead owners left in this store, and with `own` what this process left too (at its exit)."""
    # First, so that no service of the dead makes a container after they were listed.
    _end_services(podman)
    query = {"all": "true", "filters": json.dumps({"label": [f"{APP}=lego"]})}
    listed = podman.request("get", "/containers/json", params=query).json()
    containers = 0
    for container in listed or ():
        owner = Owner.parse((container.get("Labels") or {}).get(OWNER, ""))
        if owner and _stale(owner, own) and remove(podman, container["Id"]):
            containers += 1
    return Swept(containers, _sweep_sockets(podman, own))


def remove(podman: Podman, container: str) -> bool:
    """Kill and remove a container; True if it is gone."""
    params = {"force": "true", "timeout": 0, "volumes": "true"}
    with contextlib.suppress(SandboxError):
        response = podman.request("delete", f"/containers/{container}", params=params, allow=(404, 409, 500))
        if response.status_code < 400 or response.status_code == 404:
            return True
    # The engine's own cleanup of the container may hold it, or its mounts, at this moment; the command line waits for
    # the one, and finds the other gone when it comes again. It also works where the service does not.
    for _ in range(_REMOVALS):
        with contextlib.suppress(SandboxError):
            podman.cli("rm", "--force", "--ignore", "--volumes", "--time", "0", container, timeout=60)
            return True
    return False


def _sweep_sockets(podman: Podman, own: bool) -> int:
    folders = 0
    for folder in podman.paths.sockets.iterdir():
        tag, _, number = folder.name.rpartition("-")
        owner = Owner.parse(tag) if number.isdigit() else None
        if owner and _stale(owner, own):
            shutil.rmtree(folder, ignore_errors=True)
            folders += 1
    return folders


def _end_services(podman: Podman) -> None:
    """Ask the podman services of dead owners to leave; left alone, each stays until it has been idle for minutes."""
    prefix = f"unix://{podman.paths.run}/api-"
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            last = (process / "cmdline").read_bytes().rstrip(b"\0").rpartition(b"\0")[2].decode(errors="replace")
            if last.startswith(prefix) and _pid_is_dead(last.removeprefix(prefix)):
                os.kill(int(process.name), signal.SIGTERM)
    for socket in podman.paths.run.glob("api-*.sock"):
        if _pid_is_dead(socket.name.removeprefix("api-")):
            socket.unlink(missing_ok=True)


def _pid_is_dead(name: str) -> bool:
    """`name` begins with the owner's pid and a dash."""
    pid = name.partition("-")[0]
    return pid.isdigit() and start_time(int(pid)) is None


def _stale(owner: Owner, own: bool) -> bool:
    return not owner.alive() or (own and owner == Owner.current())


@lru_cache(maxsize=1)
def _current(pid: int) -> Owner:
    start = start_time(pid)
    assert start is not None
    return Owner(boot_id()[:8], pid, start)
