"""Verification of one stored submission, from claim to verdict row."""

from __future__ import annotations

import asyncio

from lego.errors import LegoError
from lego.images import recipes
from lego.rollout.site import Workshop, limits_of
from lego.rundb import verdicts
from lego.rundb.store import Row
from lego.sandbox.submission import Submission
from lego.tasks.task import Task
from lego.units import parse_duration
from lego.verifier.grade import Nothing, Oracle, verify
from lego.verifier.verdict import Verdict

Candidate = Submission | Oracle | Nothing


async def verify_trial(row: Row, workshop: Workshop) -> None:
    """Grade the trial's submission in a fresh container and append the verdict.

    A verifier fault becomes an `error` verdict without a reward; the stored submission is verified again later.
    """
    run = workshop.run
    try:
        verdict = await verify_candidate(Submission.from_bytes(row["submission"]), run.tasks[row["task_id"]], workshop)
    except asyncio.CancelledError:
        verdicts.release(run.store, row["id"])
        raise
    except LegoError as error:
        verdict = Verdict("error", None, {"reason": str(error), "fault": error.fault})
    record_verdict(row["id"], verdict, workshop, leased=True)


async def verify_candidate(candidate: Candidate, task: Task, workshop: Workshop) -> Verdict:
    """The verdict on a submission, on the solution, or on nothing at all."""
    run = workshop.run
    timeout = parse_duration(run.config.verify.timeout) if run.config.verify.timeout else task.verifier_timeout
    return await verify(
        workshop.podman,
        task,
        recipes.task_tag(task, run.config.images),
        candidate,
        limits_of(run, task),
        timeout,
        run_id=run.config.run.name,
    )


def record_verdict(trial_id: int, verdict: Verdict, workshop: Workshop, *, leased: bool) -> None:
    verdicts.record(
        workshop.run.store,
        trial_id,
        reward=verdict.reward,
        outcome=verdict.outcome,
        detail=verdict.detail,
        tamper=[vars(finding) for finding in verdict.tamper],
        trust=verdict.trust,
        log=verdict.log,
        seconds=verdict.seconds,
        leased=leased,
    )
