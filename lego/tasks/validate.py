"""Defects that can be seen in a task without running it. What only shows in a sandbox is `lego verify --oracle`'s."""

from __future__ import annotations

import re
from dataclasses import replace

from lego.tasks.task import Task

_REWARD = re.compile(rb"reward\.(txt|json)")
_ABORTS = re.compile(rb"^\s*set\s+-[a-z]*e", re.MULTILINE)


def warnings(task: Task) -> list[str]:
    """What looks wrong with a task that could be loaded, a sentence each."""
    if task.steps:
        own = [one for one in task.metadata.get("warnings", "").split("; ") if one]
        return own + [f"step {step.name}: {one}" for step in task.steps for one in warnings(_plain(step.task))]
    found = [one for one in task.metadata.get("warnings", "").split("; ") if one]
    if not task.solution:
        found.append("has no solution: it cannot be checked, and is not trained on")
    if task.grading.grader == "harbor" and task.tests:
        if not any(_REWARD.search(file.data) for file in task.tests.values()):
            found.append("no file in tests/ writes a reward")
        if "test.sh" in task.tests and _ABORTS.search(task.tests["test.sh"].data):
            found.append("tests/test.sh has set -e: it may end before the reward is written")
    if task.grading.grader == "command":
        found.append("is graded by an exit code alone, which code under test can forge")
    if task.grading.excluded:
        number = len(task.grading.excluded)
        found.append(f"{number} of its named tests {'is' if number == 1 else 'are'} excluded")
    found += [f"{path} is in the agent's image with the content of a hidden file" for path in _leaks(task)]
    return found


def _plain(task: Task) -> Task:
    """Without what is said of the whole task already."""
    return replace(task, metadata={})


def _leaks(task: Task) -> list[str]:
    hidden = {file.data for tree in (task.tests, task.solution) for file in tree.values() if len(file.data) > 16}
    visible = {**task.environment.context, **task.environment.workspace}
    return sorted(path for path, file in visible.items() if file.data in hidden)
