from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from lego.proxy.app import Proxy
from lego.proxy.records import FinishedCall
from lego.proxy.session import Caps, Session, SessionSpec
from tests.proxy.parts import LetterRendering, PlayEngine

Open = Callable[..., AbstractAsyncContextManager[Session]]


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def rows() -> list[FinishedCall]:
    return []


@pytest.fixture
def opened(short_dir: Path, rows: list[FinishedCall]) -> Open:
    """Open a proxy on an engine and one session in it, recording into `rows`."""
    numbers = itertools.count()

    @asynccontextmanager
    async def open_session(
        engine: PlayEngine, *, proxy: dict[str, Any] | None = None, rendering: Any = None, **spec: Any
    ) -> AsyncIterator[Session]:
        folder = short_dir / str(next(numbers))
        folder.mkdir()
        fields: dict[str, Any] = {
            "id": "trial-1",
            "socket_dir": folder,
            "token": "sk-right",
            "caps": Caps(max_turns=20, max_output_tokens=200, context=2000),
            "on_call": rows.append,
            **spec,
        }
        async with (
            Proxy(engine, rendering or LetterRendering(), **(proxy or {})) as running,
            running.session(SessionSpec(**fields)) as session,
        ):
            yield session

    return open_session
