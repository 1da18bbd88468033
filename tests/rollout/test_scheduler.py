"""The scheduler against work that the test itself lets go on: no sleeping, no timing."""

from __future__ import annotations

import asyncio

import pytest

from lego.errors import LeaseLost, SandboxError
from lego.rollout.scheduler import drain
from lego.rollout.stopping import Stop


class Work:
    """Items 0..n-1, each finished when the test says so. `most` is how many ever ran at once."""

    def __init__(self, items: int) -> None:
        self.left = list(range(items))
        self.gates = {item: asyncio.Event() for item in range(items)}
        self.running: set[int] = set()
        self.done: list[int] = []
        self.cancelled: list[int] = []
        self.most = 0
        self.changed = asyncio.Condition()

    def claim(self) -> int | None:
        return self.left.pop(0) if self.left else None

    async def work(self, item: int) -> None:
        self.running.add(item)
        self.most = max(self.most, len(self.running))
        await self._tell()
        try:
            await self.gates[item].wait()
            self.done.append(item)
        except asyncio.CancelledError:
            self.cancelled.append(item)
            raise
        finally:
            self.running.discard(item)
        await self._tell()

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until_running(self, count: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.running) == count)

    def finished(self) -> bool:
        return not self.left and not self.running


async def test_everything_is_done_at_most_so_many_at_once() -> None:
    work = Work(7)
    for gate in work.gates.values():
        gate.set()
    await drain(work.claim, work.work, concurrency=3, stop=Stop(), finished=work.finished)
    assert sorted(work.done) == list(range(7))
    assert work.most <= 3


async def test_a_graceful_stop_claims_nothing_more_and_waits_for_what_runs() -> None:
    work, stop = Work(5), Stop()
    draining = asyncio.create_task(drain(work.claim, work.work, concurrency=2, stop=stop, finished=work.finished))
    await work.until_running(2)
    stop.ask()
    work.gates[0].set()
    await work.until_running(1)
    assert not draining.done()
    work.gates[1].set()
    await draining
    assert (work.done, work.left) == ([0, 1], [2, 3, 4])


async def test_a_second_stop_cancels_what_runs() -> None:
    work, stop = Work(2), Stop()
    draining = asyncio.create_task(drain(work.claim, work.work, concurrency=2, stop=stop, finished=work.finished))
    await work.until_running(2)
    stop.ask()
    stop.ask()
    await draining
    assert (sorted(work.cancelled), work.done) == ([0, 1], [])


async def test_an_error_ends_the_others_and_is_raised() -> None:
    work = Work(3)

    async def failing(item: int) -> None:
        if item == 1:
            await work.until_running(1)
            raise SandboxError("podman died")
        await work.work(item)

    with pytest.raises(SandboxError, match="podman died"):
        await drain(work.claim, failing, concurrency=2, stop=Stop(), finished=work.finished)
    assert work.cancelled == [0]


async def test_work_that_lost_its_lease_is_left_to_its_new_owner() -> None:
    work = Work(2)
    work.gates[1].set()

    async def sometimes(item: int) -> None:
        if item == 0:
            raise LeaseLost("taken over")
        await work.work(item)

    await drain(work.claim, sometimes, concurrency=1, stop=Stop(), finished=work.finished)
    assert work.done == [1]


async def test_it_waits_for_what_other_workers_still_hold() -> None:
    """Nothing to claim, but not finished: another worker's trial may yet come back as a new attempt."""
    looks = 0
    handed_back: list[int] = []

    def claim() -> int | None:
        nonlocal looks
        looks += 1
        if looks == 3:
            return 42
        return None

    async def work(item: int) -> None:
        handed_back.append(item)

    await drain(claim, work, concurrency=1, stop=Stop(), finished=lambda: bool(handed_back))
    assert handed_back == [42]
