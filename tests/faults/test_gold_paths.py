"""Files that are protected from agents, unless the task's own solution has to change them."""

import json

import pytest

pytestmark = pytest.mark.podman

SOLVE = "#!/bin/sh\necho right > /app/pyproject.toml\necho extra > /app/tox.ini\n"
GRADES = """#!/bin/sh
if [ "$(cat /app/pyproject.toml)" = right ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


def test_what_the_solution_changes_is_not_protected_once_the_oracle_check_has_seen_it(project, podman):
    project.task("settings", solve=SOLVE, tests=GRADES)
    project.write(rollout={"samples_per_task": 1})
    assert project.lego("rollout").code == 0
    assert project.lego("verify").code == 0
    (before,) = project.trials()
    assert before["reward"] == 0
    assert {path for path, _ in json.loads(before["submission_note"])["dropped"]} == {
        "/app/pyproject.toml",
        "/app/tox.ini",
    }

    assert project.lego("verify", "--oracle").code == 0
    assert project.lego("train").code == 0
    assert project.lego("rollout").code == 0
    assert project.lego("verify").code == 0
    after = project.trials()[-1]
    assert after["reward"] == 1
    assert json.loads(after["submission_note"])["dropped"] == []
