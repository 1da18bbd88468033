from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Footer

from lego.monitor.app import MonitorApp
from lego.rundb.store import Store
from tests.run_fixture import a_run

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Store]:
    """The run of tests/run_fixture.py, as the process that runs it holds it."""
    store = a_run(tmp_path)
    yield store
    store.close()


@pytest.fixture
def app(writer: Store) -> Iterator[MonitorApp]:
    store = Store.open_read_only(writer.path)
    known = {"/app/window.py": b"def ok(n):\n    return n < 3\n", "/app/old.py": b"x = 1\n"}
    yield MonitorApp(store, "demo", wanted=20, originals=lambda task: known)
    store.close()


def seen(app: MonitorApp) -> str:
    """What is on the screen, as text."""
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip).rstrip() for strip in strips)


async def settled(pilot: Pilot[None]) -> None:
    """Until two looks in a row show the same, keys at the foot included: a busy machine draws late."""
    before = ""
    for _ in range(200):
        await pilot.pause()
        now = seen(pilot.app)  # type: ignore[arg-type]
        drawn = not pilot.app.screen.query(Footer) or now.splitlines()[-1].strip()
        if now == before and drawn:
            return
        before = now


@pytest.fixture
def same_as_before() -> Callable[[str, str], None]:
    """Compares a text with tests/monitor/snapshots/NAME.txt; LEGO_UPDATE_SNAPSHOTS=1 writes it instead."""

    def check(name: str, text: str) -> None:
        path = SNAPSHOTS / f"{name}.txt"
        if os.environ.get("LEGO_UPDATE_SNAPSHOTS"):
            path.write_text(text + "\n", encoding="utf-8")
        assert text + "\n" == path.read_text(encoding="utf-8")

    return check
