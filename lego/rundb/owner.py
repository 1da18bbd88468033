"""Who holds a lease, and whether they still live.

An owner is `host/boot/pid/start/nonce`. On the same host and boot a missing process, or another process under the
same pid, is proof of death, so a restart does not wait for the lease to run out.
"""

from __future__ import annotations

import os
import platform
import secrets
from pathlib import Path


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _start_time(pid: int) -> str:
    """Kernel start time of a process in clock ticks since boot, "" if there is none (or it is a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def new_owner() -> str:
    pid = os.getpid()
    return "/".join([platform.node(), _boot_id(), str(pid), _start_time(pid), secrets.token_hex(4)])


def is_dead(owner: str) -> bool:
    """True only on proof: same host and boot, and that process is gone."""
    host, boot, pid, start, _ = owner.split("/")
    if host != platform.node():
        return False
    if boot != _boot_id():
        return True
    return _start_time(int(pid)) != start
