"""What /proc says of the processes of this host."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path


def boot_id() -> str:
    """The kernel's id of this boot; "unknown" where there is no /proc, where a run can still be looked at."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with its pid, its identity. None if it is gone, or a zombie."""
    fields = _stat(Path("/proc") / str(pid))
    return None if fields is None or fields[0] in ("Z", "X") else int(fields[19])


def descendants(pid: int) -> list[int]:
    """The processes that `pid` and its children have started and that are still theirs, parents before children."""
    return _below([pid], _all())[1:]


def session(pid: int) -> list[int]:
    """The processes of the session that `pid` leads, or led while it lived, and what these have started."""
    everyone = _all()
    return _below([each for each, (_, leader) in everyone.items() if leader == pid], everyone)


def with_argument(text: str) -> list[int]:
    """The processes in whose command line `text` stands."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def kill(pids: Iterable[int]) -> None:
    """Kill those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _all() -> dict[int, tuple[int, int]]:
    """Process -> its parent, and its session's leader."""
    fields = {int(folder.name): _stat(folder) for folder in Path("/proc").glob("[0-9]*")}
    return {pid: (int(one[1]), int(one[3])) for pid, one in fields.items() if one is not None}


def _below(pids: list[int], everyone: Mapping[int, tuple[int, int]]) -> list[int]:
    """`pids` and what they started, parents before children, each once."""
    children: dict[int, list[int]] = defaultdict(list)
    for pid, (parent, _) in everyone.items():
        children[parent].append(pid)
    found = dict.fromkeys(pids)
    queue = list(found)
    for each in queue:
        fresh = [child for child in children[each] if child not in found]
        found |= dict.fromkeys(fresh)
        queue += fresh
    return queue


def _stat(folder: Path) -> list[str] | None:
    """/proc/PID/stat from its third field (the state) on: the second, the command's name, may hold anything."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
