"""Verification once more: which verdicts would be others today?"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lego.rollout.site import Workshop
from lego.rollout.verification import record_verdict, verify_submission
from lego.rundb import verdicts
from lego.rundb.store import Row
from lego.together import together


@dataclass(frozen=True)
class Change:
    """A verdict that is another now; (outcome, reward) before and now."""

    trial: int
    task: str
    before: tuple[str, float | None]
    now: tuple[str, float | None]


async def verify_again(workshop: Workshop, rows: Sequence[Row], on_done: Callable[[], None]) -> list[Change]:
    """Verify stored submissions once more, append the verdicts, and return what changed."""
    run = workshop.run
    gate = asyncio.Semaphore(run.config.verify.concurrency)
    changed: list[Change] = []

    async def one(row: Row) -> None:
        async with gate:
            before = verdicts.latest(run.store, row["id"])
            verdict = await verify_submission(row, workshop)
            record_verdict(row["id"], verdict, workshop, leased=False)
            now = (verdict.outcome, verdict.reward)
            if before and (before["outcome"], before["reward"]) != now:
                changed.append(Change(row["id"], row["task_id"], (before["outcome"], before["reward"]), now))
            on_done()

    async with together() as group:
        for row in rows:
            group.create_task(one(row))
    return changed
