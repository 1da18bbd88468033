"""Who holds a lease, and whether they still live.

An owner is `host/boot/pid/start/nonce`. On the same host and boot a missing process, or another process under the
same pid, is proof of death, so a restart does not wait for the lease to run out.
"""

from __future__ import annotations

import os
import platform
import secrets

from lego.processes import boot_id, start_time


def new_owner() -> str:
    pid = os.getpid()
    return "/".join([platform.node(), boot_id(), str(pid), str(start_time(pid)), secrets.token_hex(4)])


def is_dead(owner: str) -> bool:
    """True only on proof: same host and boot, and that process is gone."""
    host, boot, pid, start, _ = owner.split("/")
    if host != platform.node():
        return False
    if boot != boot_id():
        return True
    return str(start_time(int(pid))) != start
