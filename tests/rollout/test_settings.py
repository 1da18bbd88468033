from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lego.config.load import Loaded
from lego.config.schema import Config, RunSection, TaskSource, TasksSection
from lego.errors import ConfigError, HarnessError
from lego.rollout.run import Run, open_run
from lego.rollout.settings import begin_round
from lego.rundb import catalogue
from lego.rundb.rounds import RoundKind


def opened(folder: Path, harness: str, weights: dict[str, float]) -> Run:
    """A run of six tasks whose harness is drawn, and of two that name theirs, in both splits."""
    drawn = [TaskSource("family", name="off-by-one", count=6, seed=1)]
    held_out = [TaskSource("family", name="off-by-one", count=2, seed=2, harness=harness)]
    named = [TaskSource("family", name="off-by-one", count=2, seed=3, harness=harness)]
    config = Config(
        run=RunSection(name="r", dir=str(folder)), tasks=TasksSection([*drawn, *named], held_out), harness=weights
    )
    config.rollout.tasks_per_round = 0
    return open_run(Loaded(config, {}, folder))


def harness_of(run: Run, kind: RoundKind, ordinal: int) -> dict[str, str]:
    """Task id -> harness of the round that begins."""
    policy = catalogue.policy(run.store) or catalogue.add_policy(
        run.store, parent=None, path="p", digest="d", made_by="start"
    )
    round_ = begin_round(run, kind, policy, ordinal)
    rows = run.store.rows("SELECT DISTINCT task_id, harness FROM trials WHERE round_id = ?", (round_.id,))
    assert len(rows) == len({row["task_id"] for row in rows}), "a group never mixes harnesses"
    return {row["task_id"]: row["harness"] for row in rows}


def test_a_task_that_names_its_harness_always_runs_in_it(tmp_path: Path) -> None:
    run = opened(tmp_path, "codex", {"tiny-agent": 1.0, "mini-swe-agent": 1.0})
    assert sorted(run.specs) == ["codex", "mini-swe-agent", "tiny-agent"]
    for ordinal in (1, 2):
        chosen = harness_of(run, "train", ordinal)
        assert [chosen.pop(f"off-by-one-3-000{n}") for n in range(2)] == ["codex"] * 2
        assert len(chosen) == 6 and set(chosen.values()) == {"tiny-agent", "mini-swe-agent"}
    assert set(harness_of(run, "eval", 1).values()) == {"codex"}
    run.store.close()


def test_a_task_without_a_solution_is_not_trained_on(tmp_path: Path) -> None:
    run = opened(tmp_path, "codex", {"tiny-agent": 1.0})
    kept = "off-by-one-1-0002"
    for name, task in run.tasks.items():
        if name != kept:
            run.tasks[name] = replace(task, solution={})
    assert set(harness_of(run, "train", 1)) == {kept}
    assert len(harness_of(run, "eval", 1)) == 2, "what a policy does with them may be looked at"
    run.tasks[kept] = replace(run.tasks[kept], solution={})
    with pytest.raises(ConfigError, match="no task of tasks.train has a solution"):
        harness_of(run, "train", 2)
    run.store.close()


def test_a_harness_that_the_sandbox_cannot_hold_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sandbox.memory: qwen-code needs at least 1g, and is given 512m"):
        opened(tmp_path, "qwen-code", {"tiny-agent": 1.0})


def test_a_harness_nobody_ships_is_named_when_the_run_is_opened(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match="no harness spec named 'codecs'") as caught:
        opened(tmp_path, "codecs", {"tiny-agent": 1.0})
    assert caught.value.hint == "did you mean codex?"
