"""What a verification says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["passed", "failed", "broken", "error"]
"""passed/failed: the tests ran. broken: nothing parsed, no reward or a hang, and the control shows it is the
submission's doing (reward 0). error: infrastructure; reward is None."""


@dataclass(frozen=True)
class Finding:
    """Evidence that a trial tried to influence its own grading."""

    kind: str
    path: str
    detail: str = ""


@dataclass(frozen=True)
class Verdict:
    """`reward` is None unless a verifier really produced one (or the outcome is broken: 0). `trust` states what
    the grader can and cannot rule out. `detail` is small and JSON; `log` is the test log's bytes."""

    outcome: Outcome
    reward: float | None
    detail: dict[str, Any] = field(default_factory=dict)
    tamper: tuple[Finding, ...] = ()
    trust: str = ""
    log: bytes = b""
    seconds: float = 0.0
