"""Harbor's features in whole runs: each task of one round uses another of them, and a scripted agent solves it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lego.rundb.store import Row
from lego.sandbox.podman import Podman
from tests._tiny import tiny_policy
from tests.faults.conftest import GRADES, Project

__all__ = ["tiny_policy"]
pytestmark = pytest.mark.podman

SERVICE = """FROM debian:bookworm
WORKDIR /app
ENTRYPOINT ["/bin/sh", "-c", "echo up > /srv/up; exec \\"$@\\"", "sh"]
"""
UP = "[environment.healthcheck]\ncommand = 'grep -q up /srv/up'\ninterval_sec = 0.1\nretries = 600\n"
DOWN = "[environment.healthcheck]\ncommand = 'echo port closed; false'\ninterval_sec = 0.0\nretries = 2\n"


@pytest.fixture(scope="module")
def run(podman: Podman, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A round that was rolled out and verified."""
    project = Project(tmp_path_factory.mktemp("harbor"), str(tiny_policy), f"harbor-{uuid.uuid4().hex[:12]}")
    project.task("service", dockerfile=SERVICE, toml=UP, tests=GRADES.replace("[", "grep -q up /srv/up && [", 1))
    project.task("no-service", toml=DOWN)
    project.write(rollout={"samples_per_task": 1, "max_attempts": 2})
    assert project.lego("rollout").code == 0
    assert project.lego("verify").code == 0
    yield project


def attempts(project: Project, task: str) -> list[Row]:
    return [trial for trial in project.trials() if trial["task_id"] == task]


def reward(project: Project, task: str) -> Any:
    (trial,) = attempts(project, task)
    return trial["outcome"], trial["reward"]


def test_the_agent_and_the_tests_find_the_environments_service(run: Project) -> None:
    assert reward(run, "service") == ("passed", 1.0)


def test_a_service_that_does_not_come_up_is_infrastructure(run: Project) -> None:
    tried = attempts(run, "no-service")
    assert [(trial["status"], trial["fault"], trial["attempt"]) for trial in tried] == [
        ("failed", "infra", 1),
        ("failed", "infra", 2),
    ]
    assert all("health check" in trial["reason"] and "port closed" in trial["reason"] for trial in tried)
    assert all(trial["reward"] is None for trial in tried)
