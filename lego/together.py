"""Tasks that run at once and fail as one: what comes out is the failure itself, never a group of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """An asyncio.TaskGroup that raises the first exception of its tasks as it is; the other tasks are cancelled.

    A group of exceptions is no LegoError, and would reach a person as a traceback.
    """
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        first = _first(several)
        raise first from first.__cause__


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
