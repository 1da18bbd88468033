"""One family of errors, named by the boundary that failed.

Each error knows whose fault it is. `fault` decides what may follow: an `infra` fault is retried and never
becomes a reward; a `policy` fault is the agent's own doing and is graded; a `task` fault belongs to the task's
author; a `user` fault is a mistake in a command or a config and is reported in one line.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Fault = Literal["infra", "policy", "task", "user"]


class LegoError(Exception):
    """An error that a person can act on: what happened, where, and what to do.

    `hint` is a second line that says what to do; it is shown indented under the first.
    """

    boundary: ClassVar[str] = "lego"
    default_fault: ClassVar[Fault] = "infra"

    def __init__(self, message: str, *, hint: str = "", fault: Fault | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.fault: Fault = fault or self.default_fault

    def __str__(self) -> str:
        return f"{self.boundary}: {self.message}"


class ConfigError(LegoError):
    boundary = "config"
    default_fault = "user"


class StoreError(LegoError):
    boundary = "store"


class LeaseLost(StoreError):
    """Another worker owns the row now; whatever this worker was about to write must not be written."""


class TaskError(LegoError):
    boundary = "task"
    default_fault = "task"


class ImageError(LegoError):
    boundary = "image"


class SandboxError(LegoError):
    boundary = "sandbox"


class Unfit(SandboxError):
    """What lies in a container keeps files from being laid or a command from being started in it."""


class HarnessError(LegoError):
    boundary = "harness"


class EngineError(LegoError):
    boundary = "engine"


class ProxyError(LegoError):
    boundary = "proxy"


class VerifierError(LegoError):
    boundary = "verifier"


class RenderError(LegoError):
    """Messages that the model family's template cannot express."""

    boundary = "render"
    default_fault = "policy"


class TrajectoryError(LegoError):
    """An invariant of the recorded token stream does not hold."""

    boundary = "trajectory"


class ObjectiveError(LegoError):
    boundary = "objective"


class TrainerError(LegoError):
    boundary = "trainer"


class GateError(LegoError):
    """A bound the user set was not met: exit code 4."""

    boundary = "gate"
    default_fault = "user"
