"""A graceful stop on the first Ctrl-C (or TERM), an immediate one on the second."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Stop:
    """`asked`: begin nothing new and finish what runs. `forced`: give running work back and leave now.

    `abandons`: what runs now is given up when a stop is asked for.
    """

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()
        self.abandons = False

    def ask(self) -> None:
        (self.forced if self.asked.is_set() else self.asked).set()

    async def or_abandon(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of `work`, which can be begun again at no great loss: None if a stop was asked for before its
        end, and it was cancelled."""
        task, asked = asyncio.create_task(work), asyncio.create_task(self.asked.wait())
        self.abandons = True
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            self.abandons = False
            task.cancel()
            asked.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)


@asynccontextmanager
async def stop_on_signals(tell: Callable[[str], None]) -> AsyncIterator[Stop]:
    """Turn SIGINT and SIGTERM into a Stop; `tell` says to a person what happens next."""
    stop = Stop()

    def on_signal() -> None:
        stop.ask()
        if stop.forced.is_set():
            tell("stopping now; trials in flight go back to the queue")
        elif stop.abandons:
            tell("stopping; the same command begins this part again")
        else:
            tell("finishing the trials in flight, then stopping; again to stop at once")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
