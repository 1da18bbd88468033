"""Runs leased work, so many at a time, until there is none left or a stop is asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from lego.errors import LeaseLost
from lego.rollout.stopping import Stop
from lego.rundb import trials
from lego.rundb.store import Store

T = TypeVar("T")
POLL = 0.25
"""Seconds between looks at the database while other workers hold what is left."""


async def drain(
    claim: Callable[[], T | None],
    work: Callable[[T], Awaitable[None]],
    *,
    concurrency: int,
    stop: Stop,
    finished: Callable[[], bool],
) -> None:
    """Claim and work until `finished()` says that nothing is left, here or with any other worker.

    After `stop.asked` nothing more is claimed; after `stop.forced` the running work is cancelled (it gives its
    claim back). An exception of `work` cancels the rest and is raised; work that lost its lease is another's now.
    """
    running: set[asyncio.Task[None]] = set()
    forced = asyncio.ensure_future(stop.forced.wait())
    try:
        while not stop.forced.is_set():
            while len(running) < concurrency and not stop.asked.is_set():
                item = claim()
                if item is None:
                    break
                running.add(asyncio.create_task(_fenced(work, item)))
            if not running and (stop.asked.is_set() or finished()):
                return
            # Others' work may end, or open a new attempt, at any time.
            timeout = POLL if len(running) < concurrency and not stop.asked.is_set() else None
            done, _ = await asyncio.wait({*running, forced}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            for task in done & running:
                running.discard(task)
                task.result()
    finally:
        forced.cancel()
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _fenced(work: Callable[[T], Awaitable[None]], item: T) -> None:
    with contextlib.suppress(LeaseLost):
        await work(item)


@asynccontextmanager
async def leases_renewed(store: Store) -> AsyncIterator[None]:
    """Keep this process's leases alive while the block runs."""

    async def renew() -> None:
        while True:
            await asyncio.sleep(store.lease / 3)
            trials.renew(store)

    task = asyncio.create_task(renew())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
