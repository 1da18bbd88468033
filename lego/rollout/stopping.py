"""A graceful stop on the first Ctrl-C (or TERM), an immediate one on the second."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Stop:
    """`asked`: begin nothing new and finish what runs. `forced`: give running work back and leave now."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.forced = asyncio.Event()

    def ask(self) -> None:
        (self.forced if self.asked.is_set() else self.asked).set()


@asynccontextmanager
async def stop_on_signals(tell: Callable[[str], None]) -> AsyncIterator[Stop]:
    """Turn SIGINT and SIGTERM into a Stop; `tell` says to a person what happens next."""
    stop = Stop()

    def on_signal() -> None:
        stop.ask()
        if stop.forced.is_set():
            tell("stopping now; trials in flight go back to the queue")
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
