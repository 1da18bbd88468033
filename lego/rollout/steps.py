"""The steps of one trial: one container, one session, one conversation a step, and what each step left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from lego.errors import SandboxError, Unfit, VerifierError
from lego.sandbox.ending import Ending, refuse_unhealthy
from lego.sandbox.submission import Submission
from lego.tasks.task import Task
from lego.verifier.steps import rewards_of, unmet
from lego.verifier.verdict import Verdict


@dataclass(frozen=True)
class Walked:
    """`ending` is the last step's, with what all of them said. `told`: for each step that was begun, how it went."""

    ending: Ending
    submission: Submission
    told: list[dict[str, Any]] = field(default_factory=list)


async def walk(
    task: Task,
    run: Callable[[Task], Awaitable[Ending]],
    hand_in: Callable[[Task], Awaitable[Submission]],
    judge: Callable[[Task, Submission], Awaitable[Verdict]],
    capped: Callable[[], bool],
) -> Walked:
    """Take a task's steps in order, as far as they go.

    It ends early where a step earned less than its min_reward, where the trial came to a cap, and where nothing can
    begin any more in what an earlier step left. Raises SandboxError where the first step cannot begin, and
    VerifierError where a reward that the next step depends on cannot be had.
    """
    endings: list[Ending] = []
    left: list[Submission] = []
    told: list[dict[str, Any]] = []
    for step in task.steps:
        try:
            ending = await run(step.task)
        except Unfit as error:
            if not left:
                raise
            told.append({"step": step.name, "ending": f"not begun: {error.message}", "rc": None, "seconds": 0.0})
            break
        if ending.reason == "lost":
            raise SandboxError(f"the container vanished in step {step.name}")
        if not left:
            refuse_unhealthy(ending, f"step {step.name}")
        told.append({"step": step.name, "ending": ending.reason, "rc": ending.rc, "seconds": round(ending.seconds, 1)})
        if ending.reason == "unhealthy":
            told[-1]["ending"] = f"not begun: {ending.evidence['failed']} failed"
            break
        endings.append(ending)
        left.append(await hand_in(step.task))
        if capped() or step is task.steps[-1]:
            break
        if step.min_reward:
            verdict = await judge(step.task, left[-1])
            if verdict.reward is None:
                reason = str(verdict.detail.get("reason", verdict.outcome))
                raise VerifierError(f"step {step.name} cannot be verified: {reason}", fault=verdict.detail.get("fault"))
            if short := unmet(step, rewards_of(verdict)):
                told[-1]["min_reward"] = short
                break
    return Walked(_joined(endings), replace(left[-1], earlier=tuple(left[:-1])), told)


def _joined(endings: list[Ending]) -> Ending:
    return replace(
        endings[-1],
        stdout=b"".join(ending.stdout for ending in endings),
        stderr=b"".join(ending.stderr for ending in endings),
        seconds=sum(ending.seconds for ending in endings),
    )
