"""A rise is called one only where chance does not explain it, and only between evaluations done alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from lego.report.change import change, told
from lego.rundb import catalogue
from lego.rundb.store import Store
from stages.cli import cli
from tests.run_fixture import begin, evaluate


def a_start(folder: Path) -> Store:
    """Policies 0 to 3, 20 held-out tasks, nothing evaluated."""
    store = begin(folder, held_out=20)
    for parent in range(3):
        catalogue.add_policy(store, parent=parent, path=f"policies/{parent + 1}", digest=f"d{parent}", made_by="train")
    return store


def test_one_evaluation_is_no_change(tmp_path: Path) -> None:
    store = a_start(tmp_path)
    assert change(store) is None
    evaluate(store, 1, 0, 1)
    assert change(store) is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (2, 12, "rose from 0.10 [0.03-0.30] (policy 0) to 0.60 [0.39-0.78] (policy 3); 10 tasks solved more often, 0"),
        (12, 2, "fell from 0.60 [0.39-0.78] (policy 0) to 0.10 [0.03-0.30] (policy 3); 0 tasks solved more often, 10"),
        (2, 3, "no change that is more than chance, 0.10 [0.03-0.30] (policy 0), then 0.15"),
    ],
)
def test_it_is_told_as_it_is(tmp_path: Path, before: int, after: int, said: str) -> None:
    store = a_start(tmp_path)
    evaluate(store, 1, 0, before)
    evaluate(store, 2, 3, after)
    found = change(store)
    assert found is not None and found.better + found.worse == abs(after - before)
    assert told(found).startswith(f"held out (greedy, template, 20 tasks): {said}"), told(found)


def test_the_first_and_the_last_done_alike_are_compared(tmp_path: Path) -> None:
    store = a_start(tmp_path)
    evaluate(store, 1, 0, 19, {"temperature": 1.0})
    evaluate(store, 2, 1, 4)
    evaluate(store, 3, 2, 15)
    evaluate(store, 4, 3, 10)
    found = change(store)
    assert found is not None
    assert (found.before["policy_version"], found.after["policy_version"], found.better, found.worse) == (1, 3, 6, 0)


def test_status_says_it(tmp_path: Path) -> None:
    store = a_start(tmp_path)
    evaluate(store, 1, 0, 2)
    evaluate(store, 2, 3, 12)
    config = tmp_path / "run.yaml"
    config.write_text(f"run: {{name: demo, dir: {tmp_path}}}\npolicy: {{model: tiny}}\n", encoding="utf-8")
    output = CliRunner().invoke(cli, ["status", "-c", str(config)]).output
    assert "rose from 0.10 [0.03-0.30] (policy 0)" in " ".join(output.split())
    assert max(map(len, output.splitlines())) <= 80
