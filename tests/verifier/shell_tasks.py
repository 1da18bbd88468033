"""Tasks graded by a line of shell, for the busybox image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lego.sandbox.layers import Entry
from lego.sandbox.submission import Submission
from lego.tasks.task import Environment, File, Healthcheck, Task

GOOD_TEST = "if grep -q fixed /app/code.txt; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"


def shell_task(test: str = GOOD_TEST, solve: str | None = "echo fixed > code.txt", **more: Any) -> Task:
    return Task(
        id="shell",
        digest="0" * 64,
        instruction="Fix it.",
        environment=Environment(workspace={"/app/code.txt": File(b"broken\n")}, workdir="/app", roots=("/app",)),
        tests={"test.sh": File(f"#!/bin/sh\n{test}\n".encode())},
        solution={} if solve is None else {"solve.sh": File(f"#!/bin/sh\n{solve}\n".encode())},
        **{"verifier_timeout": 60.0, **more},
    )


def with_health(task: Task, health: Healthcheck) -> Task:
    return replace(task, environment=replace(task.environment, health=health))


def written(**files: bytes) -> Submission:
    """A submission that adds or changes files of /app (named with _ for .)."""
    return Submission(
        ("/app",), tuple(Entry(f"/app/{name.replace('_', '.')}", "file", 0o644, data) for name, data in files.items())
    )
