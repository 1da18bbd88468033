"""What each screen shows, as text; LEGO_UPDATE_SNAPSHOTS=1 rewrites the texts, to be read before they are kept."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.filter import NoColor

from lego.monitor.app import MonitorApp
from lego.rundb import catalogue, rounds
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from tests.monitor.conftest import seen, settled
from tests.run_fixture import SETTINGS

SCREENS = {
    "overview": [],
    "trial": ["down", "down", "down", "enter"],
    "trial-folded-thinking": ["down", "down", "down", "enter", "t", "end"],
    "grid": ["g"],
    "grid-eval": ["g", "t"],
    "curves": ["c"],
    "numbers": ["c", "v"],
    "help": ["question_mark"],
    "filter": ["f"],
    "rounds": ["tab", "down"],
    "all-rounds": ["a"],
}


@pytest.mark.parametrize("name", SCREENS)
async def test_at_80_by_24(app: MonitorApp, same_as_before: Callable[[str, str], None], name: str) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in SCREENS[name]:
            await pilot.press(key)
            await settled(pilot)
        text = seen(app)
    assert all(len(row) <= 80 for row in text.splitlines())
    same_as_before(name, text)


async def test_wide(app: MonitorApp, same_as_before: Callable[[str, str], None]) -> None:
    async with app.run_test(size=(140, 30)) as pilot:
        await settled(pilot)
        same_as_before("overview-wide", seen(app))


@pytest.mark.parametrize("keys", [["a"], ["down", "down", "down", "enter", "f", "l", "end"], ["i", "end"]])
async def test_nothing_that_was_recorded_steers_the_terminal(app: MonitorApp, keys: list[str]) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        for key in keys:
            await pilot.press(key)
            await settled(pilot)
        text = seen(app)
    assert "[31m" in text or keys == ["a"]
    odd = {character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert odd <= {"\n"}


async def test_without_colour_the_cursor_is_seen(
    app: MonitorApp, writer: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    plain = MonitorApp(Store.open_read_only(writer.path), "demo")
    assert any(isinstance(filter_, NoColor) for filter_ in plain._filters)
    async with plain.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        rows = [
            "".join(segment.text for segment in strip if segment.style and segment.style.reverse)
            for strip in plain.screen._compositor.render_strips()
        ]
    assert [row.split()[:2] for row in rows if row.strip()] == [["38", "off-by-one-0007"]]


async def test_every_state_says_itself_in_words(app: MonitorApp) -> None:
    async with app.run_test(size=(140, 30)) as pilot:
        await settled(pilot)
        text = seen(app)
    for words in (
        "running",
        "pending",
        "12 of 12 named tests passed",
        "2 of 12 named tests failed",
        "tamper",
        "infra: podman died",
    ):
        assert words in text


async def test_a_long_name_keeps_the_end_that_tells_it_from_others(tmp_path: Path) -> None:
    writer = Store.open(tmp_path / "run.db")
    entries = [TaskEntry(f"a-family-with-a-long-name-{n:04d}", "train", f"l{n}", "family", "", "") for n in range(2)]
    catalogue.register_tasks(writer, entries)
    catalogue.add_policy(writer, parent=None, path="policies/0", digest="d", made_by="start")
    tasks = [(entry.id, "tiny-agent") for entry in entries]
    rounds.open_round(writer, "train", ordinal=1, policy_version=0, tasks=tasks, samples=1, settings=SETTINGS)
    app = MonitorApp(Store.open_read_only(writer.path), "demo")
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "a-fam…-name-0000" in seen(app) and "a-fam…-name-0001" in seen(app)
        await pilot.press("g")
        await settled(pilot)
        assert "a-family…-a-long-name-0001" in seen(app)


async def test_the_foot_shows_what_the_keys_do_now(app: MonitorApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        feet = []
        for keys in ([], ["slash"], ["escape"], ["slash", *"0007", "x", "enter"], ["escape"]):
            if keys:
                await pilot.press(*keys)
                await settled(pilot)
            feet.append(seen(app).splitlines()[-1].split("  "))
    usual = [" ⏎ Open", "/ Search", "q Quit", "f Filter", "g Grid", "c Curves", "i Run", "? Help"]
    assert feet[0] == feet[2] == feet[4] == usual
    assert {part.strip() for part in feet[1]} == {"⏎ Search", "esc All"}
    assert {part.strip() for part in feet[3]} == {*(part.strip() for part in usual), "esc All"}
