"""Verification of one stored submission, from claim to verdict row."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

from lego.errors import LeaseLost
from lego.images import recipes
from lego.rollout.blame import blame
from lego.rollout.golds import gold_of
from lego.rollout.run import Run
from lego.rollout.site import Workshop, limits_of
from lego.rundb import calls, catalogue, rounds, verdicts
from lego.rundb.store import Row
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.task import Task
from lego.units import parse_duration
from lego.verifier import deeds
from lego.verifier.bench import Bench, Place
from lego.verifier.grade import Nothing, Oracle, grade
from lego.verifier.likeness import alike
from lego.verifier.steps import grade_steps
from lego.verifier.verdict import Finding, Verdict

Candidate = Submission | Oracle | Nothing


async def verify_trial(row: Row, workshop: Workshop) -> None:
    """Grade the trial's submission in a fresh container and append the verdict.

    Whatever the verifier raises becomes an `error` verdict without a reward; the stored submission is verified again
    later.
    """
    try:
        record_verdict(row["id"], await verify_submission(row, workshop), workshop, leased=True)
    except LeaseLost:
        raise
    except asyncio.CancelledError:
        verdicts.release(workshop.run.store, row["id"])
        raise
    except Exception as error:
        what = f"the verification of trial {row['id']} of {row['task_id']}"
        record_verdict(row["id"], failed(workshop.run, what, error), workshop, leased=True)


def failed(run: Run, what: str, error: Exception) -> Verdict:
    """The verdict where verification itself came to no end: `error`, without a reward."""
    fault, reason = blame(run, what, error)
    return Verdict("error", None, {"reason": reason, "fault": fault})


async def verify_submission(row: Row, workshop: Workshop) -> Verdict:
    """The verdict on what a trial left, and on what its agent asked of the model by itself."""
    submission, store = Submission.from_bytes(row["submission"]), workshop.run.store
    verdict = await verify_candidate(submission, workshop.run.tasks[row["task_id"]], workshop, str(row["id"]))
    done = calls.commands(store, row["id"])
    tamper = [*verdict.tamper, *_asked_itself(row), *deeds.tampering(done)]
    if rounds.get(store, row["round_id"]).settings.get("sampler") == "policy":
        # A script says the solution itself.
        tamper += alike(submission, catalogue.gold_lines(store, row["task_id"]))
    if seen := deeds.noted(done):
        verdict.detail["noted"] = [vars(finding) for finding in seen]
    return replace(verdict, tamper=tuple(tamper))


def _asked_itself(row: Row) -> tuple[Finding, ...]:
    """The agent's own commands opened the proxy's socket: the kernel named a program that is not the harness's."""
    refused = json.loads(row["summary"]).get("rejected", {}).get("foreign", 0)
    detail = f"{refused} requests to the proxy by a program that is not the harness's, refused"
    return (Finding("call of the model", "", detail),) if refused else ()


async def verify_candidate(candidate: Candidate, task: Task, workshop: Workshop, trial: str = "") -> Verdict:
    """The verdict on a submission, on the solution, or on nothing at all. `trial` labels the container."""
    gold = gold_of(workshop.run.store)
    if task.steps:
        benches = [bench_of(step.task, workshop.run, workshop.podman, trial) for step in task.steps]
        return await grade_steps(task, benches, candidate, gold)
    return await grade(bench_of(task, workshop.run, workshop.podman, trial), candidate, gold)


def bench_of(task: Task, run: Run, podman: Podman, trial: str = "") -> Bench:
    """Where a task of the run, or one step of it, is verified. `trial` labels the containers."""
    timeout = parse_duration(run.config.verify.timeout) if run.config.verify.timeout else task.verifier_timeout
    agents = Place(recipes.task_tag(task, run.config.images), limits_of(run, task.environment))
    environment = task.separate.environment if task.separate else task.environment
    tests_in = Place(recipes.verifier_tag(task, run.config.images), limits_of(run, environment))
    return Bench(podman, task, agents, tests_in, timeout, run.config.run.name, trial)


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
