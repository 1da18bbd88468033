"""What is looked at from outside while a container runs: its process, its control group, its disk."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from typing import Any

from lego.sandbox.cgroup import Cgroup


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


def note_group(group: Cgroup, evidence: dict[str, Any]) -> None:
    """Add what a container's control group counted: oom_kills, pids_refused."""
    kills = group.oom_kills()
    if kills:
        evidence["oom_kills"] = kills
    refused = group.pids_refused()
    if refused:
        evidence["pids_refused"] = refused


def disk_use(upper: str, limit: int) -> int:
    """Bytes under a folder, each entry at least one block; stops counting once over `limit`."""
    used, folders = 0, [upper]
    while folders and used <= limit:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    used += max(entry.stat(follow_symlinks=False).st_blocks * 512, 4096)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
        except OSError:
            continue
    return used
