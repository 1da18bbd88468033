"""How a container's command came to its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lego.errors import SandboxError

Reason = Literal["exit", "timeout", "stopped", "oom", "disk", "lost", "unhealthy"]


@dataclass(frozen=True)
class Ending:
    """How a box's command ended. `rc` is None when it is not known; `seconds` is wall clock from start to end.

    `reason`: exit, by itself; timeout, the clock ran out; stopped, the caller's event; oom, the kernel killed it for
    memory; disk, it wrote more than its limit; lost, the container vanished, which only the host can do; unhealthy, its
    health check was never good, so that the command did not begin (stdout is what the check and the service said).
    `evidence`: what the host saw (oom_kills, pids_refused, disk_bytes, output_dropped).
    """

    rc: int | None
    reason: Reason
    stdout: bytes
    stderr: bytes
    seconds: float
    evidence: Mapping[str, Any] = field(default_factory=dict)


def refuse_unhealthy(ending: Ending, where: str) -> None:
    """Raises SandboxError where a health check (fault infra) or a step's setup (fault task) kept a command from
    beginning."""
    if ending.reason == "unhealthy":
        words = " ".join((ending.stdout + ending.stderr)[-300:].decode(errors="replace").split())
        raise SandboxError(
            f"{ending.evidence['failed']} failed before {where} began: {words or 'without a word'}",
            hint="lego verify --oracle runs it without an agent",
            fault="task" if "setup.sh" in ending.evidence["failed"] else "infra",
        )
