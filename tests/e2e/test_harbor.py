"""Harbor's features in whole runs: each task of one round uses another of them, and a scripted agent solves it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from itertools import pairwise
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
COLLECTS = """[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "cp answer /logs/artifacts/"
"""
DOWN = "[environment.healthcheck]\ncommand = 'echo port closed; false'\ninterval_sec = 0.0\nretries = 2\n"


STEPPED = """[[steps]]
name = "one"
[[steps]]
name = "two"
[steps.healthcheck]
command = "grep -q up /srv/served"
interval_sec = 0.1
"""


def steps(folder: Path) -> None:
    """Two steps, the second over what the first left and what its setup brings up."""
    for name, text in {
        "one/instruction.md": "Write the right answer to /app/answer.\n",
        "one/solution/solve.sh": "#!/bin/sh\necho right > /app/answer\n",
        "two/instruction.md": "Now double it.\n",
        "two/workdir/setup.sh": "(echo up > /srv/served; sleep 1000) &\nmkdir given\n",
        "two/solution/solve.sh": "#!/bin/sh\ncat /app/answer /srv/served > /app/given/doubled\n",
        "two/tests/test.sh": GRADES.replace('"$(cat /app/answer)" = right', "$(wc -l < /app/given/doubled) = 2"),
    }.items():
        path = folder / "steps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(scope="module")
def run(podman: Podman, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A round that was rolled out and verified."""
    project = Project(tmp_path_factory.mktemp("harbor"), str(tiny_policy), f"harbor-{uuid.uuid4().hex[:12]}")
    project.task("service", dockerfile=SERVICE, toml=UP, tests=GRADES.replace("[", "grep -q up /srv/up && [", 1))
    project.task("no-service", toml=DOWN)
    project.task("installs", tests=GRADES.replace("sh\n", "sh\nset -e\napt-get update\n", 1))
    publishes = "#!/bin/sh\necho right > /app/answer\n"
    checks = GRADES.replace("/app/answer", "/logs/artifacts/answer")
    project.task("collected", toml=COLLECTS, solve=publishes, tests=checks)
    own = project.task("own-verifier", toml=COLLECTS, solve=publishes, tests=checks)
    (own / "tests/Dockerfile").write_text("FROM debian:bookworm\nCOPY . /tests/\nRUN touch /only-here\n")
    (own / "tests/test.sh").write_text(checks.replace("[", "test -e /only-here && [", 1))
    steps(project.task("stepped", toml=STEPPED))
    steps(project.task("gated", toml=STEPPED.replace('name = "one"', 'name = "one"\nmin_reward = 2.0')))
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


def test_tests_that_install_find_it_installed(run: Project) -> None:
    assert reward(run, "installs") == ("passed", 1.0)


def test_a_service_that_does_not_come_up_is_infrastructure(run: Project) -> None:
    tried = attempts(run, "no-service")
    assert [(trial["status"], trial["fault"], trial["attempt"]) for trial in tried] == [
        ("failed", "infra", 1),
        ("failed", "infra", 2),
    ]
    assert all("health check" in trial["reason"] and "port closed" in trial["reason"] for trial in tried)
    assert all(trial["reward"] is None for trial in tried)


@pytest.mark.parametrize("task", ["collected", "own-verifier"])
def test_what_is_collected_reaches_a_verifier_of_its_own(run: Project, task: str) -> None:
    assert reward(run, task) == ("passed", 1.0)
    (trial,) = attempts(run, task)
    assert json.loads(trial["submission_note"])["changed"] == ["/logs/artifacts/answer"]


def test_a_shell_with_the_tests_is_the_verifiers_own(run: Project) -> None:
    (trial,) = attempts(run, "own-verifier")
    inside = "ls /only-here /tests/test.sh /logs/artifacts/answer"
    assert run.lego("shell", str(trial["id"]), "--tests", "--run", inside).code == 0
    assert (
        run.lego("shell", str(trial["id"]), "--run", "test ! -e /only-here && test -e /logs/artifacts/answer").code == 0
    )


def test_a_verifiers_image_is_built_once_and_is_not_the_agents(run: Project) -> None:
    kinds = [row["kind"] for row in run.rows("SELECT kind FROM images ORDER BY kind")]
    assert kinds.count("verifier") == 2  # and the one of the task whose tests install something


def test_steps_share_a_container_and_are_one_trial_with_one_reward(run: Project) -> None:
    (trial,) = attempts(run, "stepped")
    assert (trial["outcome"], trial["reward"]) == ("passed", 1.0), trial["reason"]
    assert [(step["step"], step["ending"], step["rc"]) for step in trial["summary"]["steps"]] == [
        ("one", "exit", 0),
        ("two", "exit", 0),
    ]
    said = run.lego("show", str(trial["id"])).out
    assert said.index("Write the right answer") < said.index("Now double it")
    assert " step        two: exit after" in said and " graded      one: passed, reward 1" in said
    rows = run.rows(f"SELECT prompt_tokens FROM calls WHERE trial_id = {trial['id']} ORDER BY seq")
    prompts = [row["prompt_tokens"] for row in rows]
    assert sum(later < earlier for earlier, later in pairwise(prompts)) == 1, "a conversation a step"
    shell = run.lego(
        "shell", str(trial["id"]), "--tests", "--run", "ls /app/given/doubled /app/setup.sh && cat /tests/test.sh"
    )
    assert shell.code == 0 and "doubled" in shell.out.split("/bin/sh")[1]


def test_a_step_that_earns_too_little_is_the_last(run: Project) -> None:
    (trial,) = attempts(run, "gated")
    assert (trial["outcome"], trial["reward"]) == ("passed", 1.0)
    (step,) = trial["summary"]["steps"]
    assert step["min_reward"] == "reward 1, at least 2 is asked for"
    said = run.lego("show", str(trial["id"])).out
    assert "the next one was not begun" in said and "two: not begun" in said
