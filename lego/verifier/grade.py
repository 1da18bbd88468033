"""Verification: a submission, a fresh container, the hidden tests, and a verdict.

A fault is infrastructure only on evidence that the submission cannot produce: podman failing, or a control (the
task's own solution, or the pristine state where there is none) failing in the same way at the same time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from lego.errors import SandboxError
from lego.images.inspection import fingerprints
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.task import Task
from lego.verifier.bench import Bench, Place, Run
from lego.verifier.graders_open import open_grader
from lego.verifier.likeness import marks
from lego.verifier.reaches import reaches
from lego.verifier.tamper import findings, forged, runtime
from lego.verifier.verdict import Outcome, Verdict
from lego.verifier.witness import Seen


@dataclass(frozen=True)
class Oracle:
    """Stands for the submission that the task's own solution makes."""


@dataclass(frozen=True)
class Nothing:
    """Stands for the submission of an agent that did nothing."""


Candidate = Submission | Oracle | Nothing
"""What can be graded."""
Gold = Callable[[Bench], Awaitable[Seen | None]]
"""Says what a bench's tests show when they pass with the task's own solution; None where there is none, or they do
not."""


async def verify(
    podman: Podman,
    task: Task,
    image: str,
    candidate: Candidate,
    limits: Limits,
    timeout: float | None = None,
    *,
    separate: str = "",
) -> Verdict:
    """Grade a submission; see `grade`. `separate`: the image of a task's own verifier, where that is another one.
    `timeout` in seconds; None means what the task says."""
    agents = Place(image, limits)
    tests_in = Place(separate, limits) if separate else agents
    return await grade(Bench(podman, task, agents, tests_in, timeout or task.verifier_timeout), candidate)


async def grade(bench: Bench, candidate: Candidate, gold: Gold = Bench.gold_seen) -> Verdict:
    """Grade a submission by the task's hidden tests in a fresh container without network.

    What a paying run showed is compared with what `gold` says; detail["gold_seen"] is that where they differ.
    Infrastructure faults come back as outcome `error` with no reward; so does a submission without reward when the
    control shows that the task is at fault. An Oracle's detail says which paths it `changed`, marks its new `lines`
    and has the fingerprints of the files `made`.
    Raises VerifierError where the task has no solution and Oracle was asked for.
    """
    begun = time.monotonic()
    trust = open_grader(bench.task).trust
    try:
        submission = await _submission(bench, candidate)
        run = await bench.tests(submission)
        controlled = run.reward is None and run.ending.reason != "lost"
        control = await bench.control() if controlled else None
        watched = isinstance(candidate, Submission)
        known = await gold(bench) if watched and run.reward else None
        found = runtime(run.seen, run.reward, known) if watched else ()
    except SandboxError as error:
        return Verdict(
            "error",
            None,
            {"reason": error.message, "fault": error.fault},
            trust=trust,
            seconds=time.monotonic() - begun,
        )
    verdict = _judge(run, controlled, control)
    if isinstance(candidate, Oracle):
        verdict.detail["changed"] = sorted(submission.paths())
        verdict.detail["lines"] = marks(submission)
        before = {one.path: one.data for one in submission.originals}
        made = {one.path: one.data for one in submission.entries if one.kind == "file"}
        verdict.detail["made"] = fingerprints({path: data for path, data in made.items() if data != before.get(path)})
    if not watched:
        return replace(verdict, trust=trust, log=run.log, seconds=time.monotonic() - begun)
    if known is not None and found:
        verdict.detail["gold_seen"] = known.as_dict()
    why = forged(found)
    if why:
        verdict = Verdict("broken", 0.0, {**verdict.detail, "reason": f"the tests gave {run.reward:g}, but {why}"})
    # In a thread: 64 MiB of code take a while, and others wait for this one's loop.
    tamper = (*findings(submission), *await asyncio.to_thread(reaches, submission), *found)
    return replace(verdict, tamper=tamper, trust=trust, log=run.log, seconds=time.monotonic() - begun)


async def _submission(bench: Bench, candidate: Candidate) -> Submission:
    if isinstance(candidate, Oracle):
        return await bench.gold()
    return bench.nothing() if isinstance(candidate, Nothing) else candidate


def _judge(run: Run, controlled: bool, control: str | None) -> Verdict:
    """`control`: why the control gave no reward either, where one was run."""
    detail = dict(run.detail)
    if run.reward is not None:
        outcome: Outcome = "passed" if run.reward >= 1.0 else "failed"
        return Verdict(outcome, run.reward, detail)
    detail["reason"] = run.why
    if not controlled:
        return Verdict("error", None, {**detail, "fault": "infra"})
    if control is not None:
        return Verdict("error", None, {**detail, "control": control, "fault": "task"})
    return Verdict("broken", 0.0, {**detail, "control": "gave a reward"})
