"""How the monitor behaves: following a live run, moving, filtering, searching, paging; it only reads."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from lego.monitor.app import MonitorApp
from lego.monitor.feed import Feed
from lego.monitor.overview import Overview
from lego.monitor.reading import TrialScreen
from lego.monitor.tables import PlainTable
from lego.rundb import calls, meta, rounds, training, trials, verdicts
from lego.rundb.store import Store
from tests.big_run import a_big_run
from tests.monitor.conftest import seen, settled
from tests.run_fixture import SETTINGS, bash, call, finish, verdict


def keys_of(app: MonitorApp, table: str = "#trials") -> list[str]:
    return app.screen.query_one(table, PlainTable).keys


async def test_it_follows_the_run(app: MonitorApp, writer: Store) -> None:
    async with app.run_test(size=(140, 30)) as pilot:
        await settled(pilot)
        assert "rollout 4/8" in seen(app) and "● rollout" in seen(app)
        claimed = trials.claim(writer, 6)
        assert claimed is not None
        finish(writer, claimed)
        verdict(writer, claimed.id, 1.0)
        app._due = 0.0
        app.tick()
        await settled(pilot)
        assert "rollout 5/8" in seen(app) and "verify 4/5" in seen(app)


@pytest.mark.parametrize("key", ["q", "ctrl+q", "ctrl+c"])
async def test_it_ends_when_told_to(app: MonitorApp, key: str) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press(key)
        await pilot.pause()
        assert not app.is_running


async def test_a_new_round_is_followed_unless_another_is_looked_at(app: MonitorApp, writer: Store) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        while (claimed := trials.claim(writer, 6)) is not None:
            finish(writer, claimed)
        rounds.close_round(writer, 6, "done")
        tasks = [("off-by-one-0000", "tiny-agent")]
        rounds.open_round(writer, "train", ordinal=5, policy_version=3, tasks=tasks, samples=2, settings=SETTINGS)
        app.refresh_run()
        await settled(pilot)
        assert keys_of(app) == ["45", "44"] or len(keys_of(app)) == 2
        await pilot.press("left_square_bracket")
        rounds.open_round(writer, "train", ordinal=6, policy_version=3, tasks=tasks, samples=3, settings=SETTINGS)
        app.refresh_run()
        await settled(pilot)
        assert len(keys_of(app)) == 9, "the older round stays on the screen"


async def test_nothing_is_read_while_nothing_is_written(app: MonitorApp, monkeypatch: pytest.MonkeyPatch) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        monkeypatch.setattr(app.feed, "refresh", lambda: pytest.fail("read without a change"))
        app.tick()


async def test_a_costly_refresh_rests_longer(app: MonitorApp, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, spent, refreshed = [1000.0], [0.0], []
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)

        def refresh() -> None:
            refreshed.append(clock[0])
            spent[0] += 0.3
            # What drawing it costs, counts as well.
            app.screen.call_after_refresh(spend)

        def spend() -> None:
            spent[0] += 0.2

        monkeypatch.setattr(app.feed, "clock", lambda: clock[0])
        monkeypatch.setattr(app.feed, "changed", lambda: True)
        monkeypatch.setattr(app, "refresh_run", refresh)
        app.cpu = lambda: spent[0]
        app._due = 0.0
        for second in range(0, 20, 3):
            clock[0] = 1000.0 + second
            app.tick()
            await settled(pilot)
    assert refreshed == [1000.0, 1015.0]


async def test_a_dead_worker_is_not_shown_as_running(writer: Store) -> None:
    store = Store.open_read_only(writer.path)
    feed = Feed(store)
    snapshot = feed.refresh()
    assert snapshot.running(feed.clock()) == ["rollout"]
    assert snapshot.running(feed.clock() + 2e6) == [], "its lease has run out"
    host, boot, _, start, nonce = writer.owner.split("/")
    writer.execute(
        "UPDATE trials SET lease_owner = ? WHERE id = 38", ("/".join([host, boot, "1", "1" + start, nonce]),)
    )
    assert feed.changed()
    assert feed.refresh().running(feed.clock()) == [], "its process is gone"


async def test_rounds_verified_again_are_counted_again(writer: Store) -> None:
    feed = Feed(Store.open_read_only(writer.path))
    before = {round_.id: round_.solved for round_ in feed.refresh().rounds}
    first = writer.value("SELECT min(id) FROM trials WHERE round_id = 2")
    verdict(writer, first, 0.0)
    assert {round_.id: round_.solved for round_ in feed.refresh().rounds} == {**before, 2: before[2] - 1}


async def test_filters_and_search(app: MonitorApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert keys_of(app) == ["38", "37", "35", "34", "33", "36", "41", "40", "39"]
        for state, expected in (("solved", ["35"]), ("tamper", ["33"]), ("unsolved", ["34", "33"]), ("infra", ["36"])):
            await pilot.press("f")
            await settled(pilot)
            choices = app.screen.query_one(PlainTable)
            choices.move_cursor(row=choices.keys.index(state))
            await pilot.press("enter")
            await settled(pilot)
            assert keys_of(app) == expected, state
            assert f"only {state}" in seen(app)
        await pilot.press("escape")
        await pilot.press("slash", *"PODMAN", "enter")
        await settled(pilot)
        assert keys_of(app) == ["36"]
        await pilot.press("escape")
        await settled(pilot)
        assert len(keys_of(app)) == 9
        await pilot.press("slash", *"q", "escape")
        await settled(pilot)
        assert app.is_running and len(keys_of(app)) == 9, "what is typed into the search line is no command"


async def test_a_number_opens_that_trial_and_a_wrong_one_says_so(app: MonitorApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("slash", *"34", "enter")
        await settled(pilot)
        assert isinstance(app.screen, TrialScreen) and "trial 34 · reward 0" in seen(app)
        await pilot.press("escape")
        await settled(pilot)
        await pilot.press("slash")
        await settled(pilot)
        await pilot.press(*"999", "enter")
        await settled(pilot)
        assert "there is no trial 999" in seen(app)


async def test_a_running_trial_grows_turn_by_turn(app: MonitorApp, writer: Store) -> None:
    async with app.run_test(size=(80, 60)) as pilot:
        await settled(pilot)
        app.open_trial(38)
        await settled(pilot)
        assert "turn 3" in seen(app) and "turn 4" not in seen(app)
        calls.record(writer, 38, call(4, bash("ls -la"), []))
        app.refresh_run()
        await settled(pilot)
        assert "turn 4" in seen(app) and "ls -la" in seen(app)


async def test_search_within_a_trial(app: MonitorApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        app.open_trial(34)
        await settled(pilot)
        await pilot.press("slash", *"verdict", "enter")
        await settled(pilot)
        assert "failed, reward 0: 2 of 12 named tests failed" in seen(app)
        await pilot.press("slash", *"zebra", "enter")
        await settled(pilot)
        assert "no “zebra”" in seen(app)


async def test_a_cell_of_the_grid_leads_to_its_trials(app: MonitorApp) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        await pilot.press("g")
        await settled(pilot)
        await pilot.press("right", "enter")
        await settled(pilot)
        assert isinstance(app.screen, Overview) and "only task off-by-one-0000" in seen(app)
        assert len(keys_of(app)) == 4


async def test_a_long_list_comes_in_pages(tmp_path: Path) -> None:
    writer = a_big_run(tmp_path, rounds_=2, tasks=40, samples=8, size=10)
    app = MonitorApp(Store.open_read_only(writer.path), "demo")
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        told: list[str] = []
        for _ in range(8):
            keys = keys_of(app)
            assert len(keys) <= 100
            told += [key for key in keys if key not in told]
            app.screen.query_one("#trials", PlainTable).move_cursor(row=len(keys) - 1)
            await pilot.press("down")
            await settled(pilot)
        assert len(told) == 320 and told[0] == "638" and told[-2:] == ["640", "639"]
        await pilot.press("home")
        await settled(pilot)
        assert keys_of(app)[0] == "638"
        await pilot.press("end")
        await settled(pilot)
        assert keys_of(app)[-1] == "639"
        app.screen.query_one("#trials", PlainTable).move_cursor(row=0)
        await pilot.press("up")
        await settled(pilot)
        assert "more above and below" in seen(app)
    writer.close()


async def test_an_empty_run(tmp_path: Path) -> None:
    Store.open(tmp_path / "run.db").close()
    app = MonitorApp(Store.open_read_only(tmp_path / "run.db"), "new")
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        assert "no round was opened yet" in seen(app) and "no trial" in seen(app)
        for key in ("enter", "end", "a", "g", "enter", "escape", "c", "v", "escape", "i", "escape", "f", "escape"):
            await pilot.press(key)
            await settled(pilot)
        assert app.is_running


async def test_it_cannot_write(app: MonitorApp, writer: Store) -> None:
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(pilot)
        with pytest.raises((sqlite3.Error, Exception), match="readonly"):
            meta.event(app.store, "x", "y")
        # Nor does it keep the writer waiting: no read is left open.
        assert training.steps(writer) and verdicts.waiting(writer, 6) == 1
        meta.event(writer, "x", "y")
