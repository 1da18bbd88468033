"""The oracle check: does a task tell solved from unsolved? Empty must fail and gold must pass, twice each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from lego.plain import one_line
from lego.rollout.health import refuse_streak
from lego.rollout.site import Workshop
from lego.rollout.verification import failed, verify_candidate
from lego.rundb import catalogue
from lego.tasks.task import Task
from lego.together import together
from lego.verifier.grade import Nothing, Oracle
from lego.verifier.verdict import Verdict

REPETITIONS = 2


@dataclass(frozen=True)
class BaselineResult:
    """`empty`, `gold`: (outcome, reward) of each repetition; `log`: the end of the first wrong one's log; `why`: the
    reason of the first that gave no reward. `infra`: infrastructure failed, as often as a trial may, so that nothing
    is known of the task. `failing`: named tests that did not pass with the solution -> how they ended, where the
    grader knows tests. `copies`: files of the agent's image that already are what the solution makes, where the task
    may be solved by finding them."""

    task: str
    good: bool
    empty: list[tuple[str, float | None]] = field(default_factory=list)
    gold: list[tuple[str, float | None]] = field(default_factory=list)
    log: str = ""
    failing: dict[str, str] = field(default_factory=dict)
    why: str = ""
    infra: bool = False
    copies: list[str] = field(default_factory=list)

    def line(self) -> str:
        def said(results: list[tuple[str, float | None]]) -> str:
            return ", ".join(outcome for outcome, _ in results)

        if self.infra:
            return f"{self.task}: not checked: {self.why}"
        told = f"{self.task}: nothing done: {said(self.empty)}; solution: {said(self.gold)}"
        notes = [*([self.why] if self.why else []), *self.copies]
        return f"{told} ({'; '.join(notes)})" if notes else told


async def check_tasks(
    workshop: Workshop, tasks: Sequence[Task], on_result: Callable[[BaselineResult], None]
) -> list[BaselineResult]:
    """Check each task; results in their order.

    Raises VerifierError when one verification after another fails on infrastructure.
    """
    gate = asyncio.Semaphore(workshop.run.config.verify.concurrency)
    results: dict[str, BaselineResult] = {}
    checks = _Checks(workshop)

    async def one(task: Task) -> None:
        async with gate:
            results[task.id] = await checks.task(task)
            on_result(results[task.id])

    async with together() as group:
        for task in tasks:
            group.create_task(one(task))
    return [results[task.id] for task in tasks]


class _Checks:
    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop
        self._streak: list[str] = []

    async def task(self, task: Task) -> BaselineResult:
        empty: list[tuple[str, float | None]] = []
        gold: list[tuple[str, float | None]] = []
        log = why = ""
        failing: dict[str, str] = {}
        copies: list[str] = []
        for _ in range(REPETITIONS):
            for kind, into in (("empty", empty), ("gold", gold)):
                verdict = await self._patiently(task, "empty" if kind == "empty" else "gold")
                into.append((verdict.outcome, verdict.reward))
                reason = "" if verdict.reward is not None else _reason(verdict)
                if _is_infra(verdict):
                    return BaselineResult(task.id, False, empty, gold, log, failing, reason, infra=True)
                why = why or reason
                if kind == "gold":
                    failing |= verdict.detail.get("named_failed", {})
                    copies = self._workshop.copies(task, verdict.detail.get("made", {}))
                if not log and not _as_it_should(kind, verdict):
                    log = verdict.log[-2000:].decode(errors="replace") or str(verdict.detail)
        good = all(reward is not None and reward < 1 for _, reward in empty) and all(reward == 1 for _, reward in gold)
        return BaselineResult(task.id, good, empty, gold, log, failing, why, copies=copies)

    async def _patiently(self, task: Task, kind: Literal["empty", "gold"]) -> Verdict:
        """A fault of the infrastructure says nothing of a task: as of a trial, another attempt is made."""
        for _ in range(self._workshop.run.config.rollout.max_attempts):
            verdict = await _baseline(self._workshop, task, kind)
            if not _is_infra(verdict):
                self._streak.clear()
                break
            self._streak.insert(0, _reason(verdict))
            refuse_streak(self._streak)
        return verdict


def _is_infra(verdict: Verdict) -> bool:
    return verdict.reward is None and verdict.detail.get("fault") == "infra"


def _reason(verdict: Verdict) -> str:
    return one_line(str(verdict.detail.get("reason", "")))


def _as_it_should(kind: str, verdict: Verdict) -> bool:
    return verdict.reward is not None and (verdict.reward < 1 if kind == "empty" else verdict.reward == 1)


async def _baseline(workshop: Workshop, task: Task, kind: Literal["empty", "gold"]) -> Verdict:
    try:
        workshop.refuse_unbuilt(task)
        verdict = await verify_candidate(Nothing() if kind == "empty" else Oracle(), task, workshop)
    except Exception as error:
        verdict = failed(workshop.run, f"the oracle check ({kind}) of {task.id}", error)
    catalogue.record_baseline(
        workshop.run.store, task_id=task.id, kind=kind, reward=verdict.reward, outcome=verdict.outcome,
        detail=verdict.detail, log=verdict.log, seconds=verdict.seconds,
    )  # fmt: skip
    return verdict
