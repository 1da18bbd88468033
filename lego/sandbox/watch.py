"""What is looked at from outside while a container runs, and when it has ended: its process, its control group, its
disk, and what podman makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from lego.sandbox.cgroup import Cgroup

State = int | Literal["running", "gone"]
"""What podman says of a container: its exit code, or that there is none."""


@contextlib.contextmanager
def exit_watch(pid: int | None) -> Iterator[asyncio.Future[None]]:
    """A future done when process `pid` ends (at once where it already has)."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()
    handle = -1
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
    if handle < 0:
        gone.set_result(None)
        yield gone
        return

    def ended() -> None:
        loop.remove_reader(handle)
        if not gone.done():
            gone.set_result(None)

    loop.add_reader(handle, ended)
    try:
        yield gone
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def read_exit(file: Path) -> int | None:
    """The exit code that a container's monitor wrote into its exit file; None where it has not."""
    try:
        text = file.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.lstrip("-").isdigit() else None


def read_pid(file: Path) -> int | None:
    """The process that a container's file names; None where it is not written yet."""
    try:
        return int(file.read_text())
    except (FileNotFoundError, ValueError):
        return None


def note_group(group: Cgroup, evidence: dict[str, Any]) -> None:
    """Add what a container's control group counted: oom_kills, pids_refused."""
    kills = group.oom_kills()
    if kills:
        evidence["oom_kills"] = kills
    refused = group.pids_refused()
    if refused:
        evidence["pids_refused"] = refused


def disk_use(upper: str, limit: int) -> int:
    """Bytes under a folder, each entry at least one block; stops counting once over `limit`. Folders that lie deeper
    than a path can name cannot be counted, and are over any limit."""
    used, folders = 0, [upper]
    while folders and used <= limit:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    used += max(entry.stat(follow_symlinks=False).st_blocks * 512, 4096)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                return limit + 1
    return used


async def told_by_podman(ask: Callable[[], Awaitable[State]]) -> int | None:
    """The exit code of a container that was killed by neither us nor the kernel, None if it is gone, or podman has none
    (or a negative one, which is the same).

    The agent may kill its own harness; only the host can take the container away, a moment after the kill, or the
    monitor that would have told the code.
    """
    rc: int | None = None
    for _ in range(5):
        state = await ask()
        if state == "gone":
            return None
        rc = state if isinstance(state, int) and state >= 0 else rc
        await asyncio.sleep(0.1)
    return rc


def settled(ask: Callable[[], State], patience: float) -> State:
    """What podman says of a container that has ended, once it has seen that; within `patience` seconds, or as it is."""
    end = time.monotonic() + patience
    while (state := ask()) == "running" and time.monotonic() < end:
        time.sleep(0.01)
    return state
