"""What a trial left, to walk about in: the pristine container of its task with the submission applied."""

from __future__ import annotations

from lego.errors import StoreError
from lego.rollout.site import Workshop
from lego.rollout.verification import bench_of
from lego.rundb import trials
from lego.sandbox.container import open_box
from lego.sandbox.submission import Submission


async def open_shell(workshop: Workshop, trial_id: int, command: str, *, tests: bool, terminal: bool) -> int:
    """Run `command` (a shell's line; empty: a shell) in a fresh container with the trial's submission, on this
    process's input and output; the container is removed afterwards and nothing is recorded.

    `tests`: the hidden tests lie in /tests, as at verification, and the user is the verifier's. Of a task of several
    steps it is the last one that was begun. Returns the exit code.
    Raises StoreError where the trial left no submission.
    """
    run = workshop.run
    row = trials.trial(run.store, trial_id)
    if row is None or row["submission"] is None:
        what = "left no submission" if row else "is not in this run"
        raise StoreError(f"trial {trial_id} {what}", fault="user", hint=f"lego show {trial_id} says why" if row else "")
    submission = Submission.from_bytes(row["submission"])
    task = run.tasks[row["task_id"]]
    step = task.steps[len(submission.earlier)].task if task.steps else task
    bench = bench_of(step, run, workshop.podman, str(trial_id))
    async with open_box(workshop.podman, bench.tests_spec("shell") if tests else bench.agents_spec("shell")) as box:
        if tests:
            await bench.prepare(box, submission)
        else:
            submission.apply_to(box)
        shell = 'if command -v bash > /dev/null; then exec bash "$@"; else exec sh "$@"; fi'
        argv = ["/bin/sh", "-c", shell, "sh", *(["-c", command] if command else [])]
        return await box.attach(argv, env=bench.task.verifier_env if tests else {}, terminal=terminal)
