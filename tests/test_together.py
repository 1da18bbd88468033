"""Tasks that run at once and fail as one."""

from __future__ import annotations

import asyncio

import pytest

from lego.errors import ImageError, SandboxError
from lego.together import together


async def fail(error: BaseException, turns: int = 0) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    raise error


async def test_the_first_failure_comes_out_as_itself_and_ends_the_others() -> None:
    cause = OSError("deep down")
    error = SandboxError("gone")
    error.__cause__ = cause
    with pytest.raises(SandboxError) as caught:
        async with together() as group:
            other = group.create_task(asyncio.sleep(3600))
            group.create_task(fail(ImageError("later"), turns=3))
            group.create_task(fail(error))
    assert caught.value is error and error.__cause__ is cause
    assert other.cancelled()


async def test_groups_within_groups() -> None:
    async def inner() -> None:
        async with together() as group:
            group.create_task(fail(SandboxError("gone")))

    with pytest.raises(SandboxError):
        async with together() as group:
            group.create_task(inner())


async def test_a_cancellation_stays_one() -> None:
    async def outer() -> None:
        async with together() as group:
            group.create_task(asyncio.sleep(3600))

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_without_a_failure_all_are_waited_for() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        done.append(number)

    async with together() as group:
        for number in range(3):
            group.create_task(work(number))
    assert done == [0, 1, 2]
