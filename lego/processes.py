"""What /proc says of the processes of this host."""

from __future__ import annotations

from collections import defaultdict
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
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(folder)
        if fields is not None:
            children[int(fields[1])].append(int(folder.name))
    found = list(children[pid])
    for each in found:
        found += children[each]
    return found


def _stat(folder: Path) -> list[str] | None:
    """/proc/PID/stat from its third field (the state) on: the second, the command's name, may hold anything."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
