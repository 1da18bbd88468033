"""Verification once more: which verdicts would be others today?"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lego.errors import VerifierError
from lego.rollout.health import INFRA_STREAK, likely_cause
from lego.rollout.site import Workshop
from lego.rollout.verification import failed, record_verdict, verify_submission
from lego.rundb import trials, verdicts
from lego.rundb.store import Row
from lego.together import together
from lego.verifier.verdict import Verdict


@dataclass(frozen=True)
class Said:
    """What a verdict says. `findings` of tampering: kind and path of each, sorted."""

    outcome: str
    reward: float | None
    findings: tuple[str, ...] = ()

    def __str__(self) -> str:
        reward = "no reward" if self.reward is None else f"{self.reward:g}"
        return f"{self.outcome}, {reward}" + (f" ({', '.join(self.findings)})" if self.findings else "")


@dataclass(frozen=True)
class Change:
    """A verdict that is another now."""

    trial: int
    task: str
    before: Said
    now: Said


@dataclass
class Again:
    """`verified`: trials that were verified once more, of which `changed` have another verdict now. `kept`: trials
    whose verification failed on infrastructure, so that their verdict is the earlier one -> why."""

    verified: int = 0
    changed: list[Change] = field(default_factory=list)
    kept: dict[int, str] = field(default_factory=dict)


async def verify_again(workshop: Workshop, wanted: Sequence[int], again: Again, on_done: Callable[[], None]) -> None:
    """Verify the stored submissions of trials (their ids) that have a verdict once more, and append the new verdicts.

    `again` is told of each at once: where this is cancelled or raises, no other comparison will find those changes.
    Raises VerifierError when one verification after another fails on infrastructure.
    """
    run = workshop.run
    gate = asyncio.Semaphore(run.config.verify.concurrency)
    streak: list[str] = []

    async def one(trial: int) -> None:
        async with gate:
            row, before = trials.trial(run.store, trial), verdicts.latest(run.store, trial)
            if row is None or before is None:
                return
            try:
                verdict = await verify_submission(row, workshop)
            except Exception as error:
                verdict = failed(run, f"verifying trial {trial} of {row['task_id']} again", error)
            if verdict.outcome == "error" and verdict.detail.get("fault") == "infra":
                # The machine's trouble of today takes nothing away from what was found when it had none.
                again.kept[trial] = str(verdict.detail.get("reason", ""))
                streak.append(again.kept[trial])
                if len(streak) >= INFRA_STREAK:
                    raise VerifierError(
                        f"{len(streak)} verifications in a row failed on infrastructure, the last one: {streak[-1]}",
                        hint=f"the earlier verdicts stay as they were; {likely_cause(streak)}",
                    )
            else:
                streak.clear()
                record_verdict(trial, verdict, workshop, leased=False)
                again.verified += 1
                then, now = _stored(before), _new(verdict)
                if then != now:
                    again.changed.append(Change(trial, row["task_id"], then, now))
            on_done()

    async with together() as group:
        for trial in wanted:
            group.create_task(one(trial))


def _stored(row: Row) -> Said:
    return Said(row["outcome"], row["reward"], _findings(json.loads(row["tamper"])))


def _new(verdict: Verdict) -> Said:
    return Said(verdict.outcome, verdict.reward, _findings([vars(finding) for finding in verdict.tamper]))


def _findings(found: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(sorted({f"{one['kind']} {one['path']}".strip() for one in found}))
