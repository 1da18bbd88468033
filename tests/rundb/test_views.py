from __future__ import annotations

from pathlib import Path

import pytest

from lego.rundb import views
from lego.rundb.rounds import get
from lego.rundb.store import Store
from lego.rundb.summary import summarise
from lego.rundb.views import STATES, TrialQuery
from tests.big_run import a_big_run
from tests.run_fixture import a_run, verdict


@pytest.fixture
def run(tmp_path: Path) -> Store:
    return a_run(tmp_path)


def test_counts_agree_with_the_summary(run: Store) -> None:
    for head in views.round_heads(run):
        seen, told = views.counted(run, head), summarise(run, get(run, head.id))
        for name in (
            "slots",
            "done",
            "running",
            "pending",
            "finished",
            "verified",
            "solved",
            "reward",
            "infra",
            "tampered",
        ):
            assert getattr(seen, name) == getattr(told, name), name
    assert told.solved == 1, "of the last round's two rewards of 1, one tampered"
    assert (told.calls, told.turns) == (6, 3 / 4), "the running trial's three calls are no finished trial's turns"


@pytest.mark.parametrize("limit", [1, 2, 4, 100])
@pytest.mark.parametrize("round_id", [6, None])
@pytest.mark.parametrize("state", STATES)
def test_pages_hold_every_trial_once_in_one_order_both_ways(
    run: Store, limit: int, round_id: int | None, state: str
) -> None:
    query = TrialQuery(round_id, state)
    whole = [row["id"] for row in views.trials_page(run, query, limit=1000).rows]
    down: list[int] = []
    page = views.trials_page(run, query, limit=limit)
    assert not page.above
    down += [row["id"] for row in page.rows]
    while page.below:
        last = page.rows[-1]
        page = views.trials_page(run, query, anchor=(last["status"], last["id"]), limit=limit)
        again = views.trials_page(run, query, anchor=page.before, limit=limit)
        assert again == page
        down += [row["id"] for row in page.rows]
    up: list[int] = []
    page = views.trials_page(run, query, way="up", limit=limit)
    assert not page.below
    up = [row["id"] for row in page.rows]
    while page.above:
        assert views.trials_page(run, query, anchor=page.before, limit=limit).rows == page.rows
        first = page.rows[0]
        page = views.trials_page(run, query, anchor=(first["status"], first["id"]), way="up", limit=limit)
        up = [row["id"] for row in page.rows] + up
    assert down == up == whole and len(set(whole)) == len(whole)


def test_the_latest_verdict_is_the_one_shown(run: Store) -> None:
    verdict(run, 35, 0.0)
    rows = {row["id"]: row for row in views.trials_page(run, TrialQuery(6)).rows}
    assert rows[35]["reward"] == 0.0 and rows[35]["said"] == "2 of 12 named tests failed"
    assert [row["id"] for row in views.trials_page(run, TrialQuery(6, "solved")).rows] == []


def test_search_takes_its_text_as_it_is(run: Store) -> None:
    assert [row["id"] for row in views.trials_page(run, TrialQuery(6, text="PODMAN DIED")).rows] == [36]
    for odd in ("%", "_", "'", '"; DROP TABLE trials; --'):
        assert views.trials_page(run, TrialQuery(6, text=odd)).rows == []


def test_cells_of_the_grid(run: Store) -> None:
    cells = {cell.task_id: (cell.solved, cell.graded, cell.slots) for cell in views.cells(run, 6)}
    assert cells == {"off-by-one-0006": (1, 3, 4), "off-by-one-0007": (0, 0, 4)}
    assert views.grid_tasks(run, [2, 6], text="000", limit=2, offset=1) == ["off-by-one-0001", "off-by-one-0006"]
    assert views.count_grid_tasks(run, [2, 6]) == 4 and views.grid_tasks(run, []) == []


def test_another_process_writing_is_noticed(run: Store) -> None:
    reader = Store.open_read_only(run.path)
    before = views.data_version(reader)
    assert views.data_version(reader) == before
    verdict(run, 35, 0.0)
    assert views.data_version(reader) != before
    assert views.rounds_with_verdicts_after(reader, views.newest_verdict(reader) - 1) == {6}


def _steps(store: Store, query: TrialQuery) -> int:
    """Hundreds of instructions SQLite's machine runs for a page: work, whatever the machine's load."""
    count = 0

    def counting() -> None:
        nonlocal count
        count += 1

    store.db.conn.set_progress_handler(counting, 100)
    views.trials_page(store, query, limit=50)
    store.db.conn.set_progress_handler(None, 0)
    return count


@pytest.mark.parametrize("query", [TrialQuery(), TrialQuery(1), TrialQuery(1, "solved")])
def test_a_page_costs_the_same_in_a_run_of_any_length(tmp_path: Path, query: TrialQuery) -> None:
    small = a_big_run(tmp_path / "small", rounds_=1, tasks=20, samples=8, size=10)
    large = a_big_run(tmp_path / "large", rounds_=2, tasks=500, samples=8, size=10)
    assert _steps(large, query) <= _steps(small, query) * 1.5
