"""From a task to its grader."""

from __future__ import annotations

from lego.errors import VerifierError
from lego.tasks.task import Task
from lego.verifier.graders import CommandGrader, Grader, HarborGrader
from lego.verifier.graders_pytest import PytestIdsGrader
from lego.verifier.graders_swebench import SwebenchGrader

_REST = 0.9
"""The share of a verification's time that pytest itself gets, so that what it did can still be told."""


def open_grader(task: Task) -> Grader:
    """A grader for one run of a task's tests. Raises VerifierError where the task cannot be graded as it says."""
    grading = task.grading
    if grading.grader == "pytest-ids":
        app = next(iter(task.environment.roots), "") or task.environment.workdir
        if not app:
            raise VerifierError(f"task {task.id}: pytest-ids needs a workdir or a root", fault="task")
        return PytestIdsGrader(task, app, task.verifier_timeout * _REST)
    if "test.sh" not in task.tests and not (task.separate and task.separate.bundled):
        raise VerifierError(f"task {task.id} has no tests/test.sh", fault="task")
    if grading.grader == "swebench":
        return SwebenchGrader(grading)
    if grading.grader == "command":
        return CommandGrader()
    if grading.grader == "harbor":
        return HarborGrader()
    raise VerifierError(
        f"task {task.id}: no grader is named {grading.grader!r}",
        hint="graders: harbor, swebench, pytest-ids, command",
        fault="task",
    )
