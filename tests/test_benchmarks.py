"""The benchmarks measure what they say, and can all be run by name."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import store
from benchmarks.measure import Measure, interleaved
from benchmarks.scene import all_passed


def test_sides_take_turns_and_the_first_turn_does_not_count() -> None:
    order: list[str] = []
    numbers = {"a": iter([100.0, 1.0, 5.0, 2.0]), "b": iter([100.0, 7.0, 8.0, 9.0])}

    def side(name: str) -> float:
        order.append(name)
        return next(numbers[name])

    assert interleaved({"a": lambda: side("a"), "b": lambda: side("b")}, 3) == {"a": 2.0, "b": 8.0}
    assert order == ["a", "b"] * 4


def test_a_busy_machine_costs_repetitions() -> None:
    clock = iter([0.0, 11.0])
    turns: list[int] = []

    def side() -> float:
        turns.append(1)
        return 1.0

    assert interleaved({"a": side}, 5, budget=10.0, clock=lambda: next(clock)) == {"a": 1.0}
    assert len(turns) == 2, "the uncounted turn and one that counts"


def test_a_number_says_how_it_compares() -> None:
    shown = Measure("cycles", "1/s", 3.0, 2.0, "podman").as_dict()
    assert (shown["ratio"], shown["added"], shown["unit"]) == (1.5, 1.0, "1/s")


@pytest.mark.parametrize("rewards", [[], [1.0, None], [1.0, 0.0]])
def test_work_that_was_not_done_gives_no_number(rewards: list[float | None]) -> None:
    all_passed([1.0, 1.0], "trials")
    with pytest.raises(RuntimeError, match="not all 1"):
        all_passed(rewards, "trials")


@pytest.mark.parametrize("name", command.NAMES)
def test_every_name_can_be_run(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name}").run)


def test_an_unknown_name_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "stoer"])
    with pytest.raises(SystemExit):
        command.main()
    assert "there is no benchmark stoer" in capsys.readouterr().err


def test_the_store_is_measured_beside_both_durabilities(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "ROWS", 4)
    monkeypatch.setattr(store, "REPEATS", 2)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "store", "--json"])
    command.main()
    measures = json.loads(capsys.readouterr().out)["store"]
    assert len(measures) == 4 and all(one["ours"] > 0 and one["peer"] > 0 for one in measures)
    assert {one["beside"] for one in measures} == {"sqlite-utils, as durable", "sqlite-utils, default"}


def test_the_bare_side_commits_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS", 3)
    bare = store.Bare(tmp_path / "bare.db", as_durable=True)
    bare.calls()
    assert not bare.db.conn.in_transaction
    assert bare.db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert bare.db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert bare.db.table("calls").count == 3
