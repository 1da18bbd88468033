"""What a trial left, to walk about in: the pristine container of its task with the submission applied."""

from __future__ import annotations

from lego.errors import StoreError
from lego.images import recipes
from lego.rollout.site import Workshop, limits_of
from lego.rundb import trials
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec
from lego.sandbox.layers import Entry
from lego.sandbox.submission import Submission
from lego.verifier.grade import CAPABILITIES, hidden_tests


async def open_shell(workshop: Workshop, trial_id: int, command: str, *, tests: bool, terminal: bool) -> int:
    """Run `command` (a shell's line; empty: a shell) in a fresh container with the trial's submission, on this
    process's input and output; the container is removed afterwards and nothing is recorded.

    `tests`: the hidden tests lie in /tests, as at verification, and the user is the verifier's. Returns the exit code.
    Raises StoreError where the trial left no submission.
    """
    run = workshop.run
    row = trials.trial(run.store, trial_id)
    if row is None or row["submission"] is None:
        what = "left no submission" if row else "is not in this run"
        raise StoreError(f"trial {trial_id} {what}", fault="user", hint=f"lego show {trial_id} says why" if row else "")
    task = run.tasks[row["task_id"]]
    environment = task.environment
    spec = BoxSpec(
        recipes.task_tag(task, run.config.images),
        limits_of(run, task),
        env=environment.env,
        user=(task.verifier_user if tests else task.agent_user) or "",
        workdir=environment.workdir,
        workspace=environment.workspace,
        run_id=run.config.run.name,
        trial=str(trial_id),
        labels={"lego.kind": "shell"},
        capabilities=CAPABILITIES if tests else (),
    )
    async with open_box(workshop.podman, spec) as box:
        Submission.from_bytes(row["submission"]).apply_to(box)
        if tests:
            box.put(hidden_tests(task))
            box.lay([Entry(path, "dir", 0o777) for path in ("/logs/verifier", "/logs/agent", "/logs/artifacts")])
        shell = 'if command -v bash > /dev/null; then exec bash "$@"; else exec sh "$@"; fi'
        argv = ["/bin/sh", "-c", shell, "sh", *(["-c", command] if command else [])]
        return await box.attach(argv, env={**task.verifier_env} if tests else {}, terminal=terminal)
