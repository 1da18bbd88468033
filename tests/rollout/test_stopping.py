from __future__ import annotations

import asyncio
import os
import signal

import pytest

from lego.errors import SandboxError
from lego.rollout.stopping import Stop, stop_on_signals


async def test_work_that_ends_gives_its_result_and_leaves_no_mark() -> None:
    stop = Stop()

    async def work() -> int:
        assert stop.abandons
        return 7

    assert await stop.or_abandon(work()) == 7
    assert not stop.abandons


async def test_an_error_is_raised_as_it_is() -> None:
    async def work() -> None:
        raise SandboxError("no podman")

    with pytest.raises(SandboxError, match="no podman"):
        await Stop().or_abandon(work())


async def test_a_signal_cancels_what_is_abandoned_and_says_so() -> None:
    said: list[str] = []
    cleaned = asyncio.Event()

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    async with stop_on_signals(said.append) as stop:
        assert await stop.or_abandon(work()) is None
        assert cleaned.is_set() and stop.asked.is_set() and not stop.forced.is_set()
    assert said == ["stopping; the same command begins this part again"]
