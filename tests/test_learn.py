"""The page of `make learn` says what the results say, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.dom import minidom

import pytest

from lego.config.load import load
from lego.tasks.load import load_all

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def learn() -> ModuleType:
    spec = importlib.util.spec_from_file_location("learn", ROOT / "tools" / "learn.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def evaluation(policy: int, passed: int, low: float, high: float) -> dict[str, Any]:
    return {
        "policy": policy, "temperature": 0.0, "n": 160, "passed": passed, "rate": passed / 160, "low": low,
        "high": high,
        "solved": [f"{number:04d}" for number in range(passed)],
        "by_operator": {"<": [passed // 2, 80], ">": [passed // 2, 80]}, "by_level": {"1": [passed, 160]},
    }  # fmt: skip


def result(name: str, before: int, after: int, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "objective": "gspo", "seed": 1, "lr": 1e-4, "shuffled": False, "dtype": "float32",
        "evals": [evaluation(1, before, 0.1, 0.2), evaluation(21, after, 0.7, 0.8)],
        "compared": {"better": after - before, "worse": 0, "p": 0.001},
        "rounds": [
            {"round": 1, "status": "done", "proof/correlation": 0.99991, "proof/mean_gap": 3e-7, "step/dropped": 0.0}
        ],
        "faults": {"infra": 2}, "trials": 1600, "seconds": 5400, "commit": "", **more,
    }  # fmt: skip


def test_the_page_is_made_of_the_results(learn: ModuleType, tmp_path: Path) -> None:
    page, results = tmp_path / "learn.md", tmp_path / "learn"
    results.mkdir()
    page.write_text(f"Words.\n{learn.MARKER}\nold numbers 0.999\n")
    (results / "a.json").write_text(json.dumps(result("a", 20, 120)))
    (results / "b.json").write_text(json.dumps(result("b", 20, 24, shuffled=True, dtype="bfloat16")))
    learn.write_page(results, page)
    text = page.read_text()
    assert text.startswith("Words.\n") and "0.999 " not in text
    rows = [line for line in text.splitlines() if line.startswith(("| a |", "| b |"))]
    assert "| 0.125 [0.100, 0.200] | 0.750 [0.700, 0.800] | +0.625 | yes (0.100) |" in rows[0]
    assert "| gspo, rewards exchanged, bfloat16 |" in rows[1] and "| +0.025 | no (0.100) |" in rows[1]
    assert "10 → 60 of 80" in text and "1.50 | 0.999910 | 3.0e-07 | 0 | infra 2 |" in text
    minidom.parseString((results / "a.svg").read_text())


def test_the_page_is_up_to_date(learn: ModuleType, tmp_path: Path) -> None:
    results = tmp_path / "learn"
    results.mkdir()
    for path in learn.RESULTS.glob("*.json"):
        (results / path.name).write_text(path.read_text())
    page = tmp_path / "learn.md"
    page.write_text(learn.PAGE.read_text())
    learn.write_page(results, page)
    assert page.read_text() == learn.PAGE.read_text(), "docs/learn.md is out of date: run tools/learn.py --page"
    for picture in results.glob("*.svg"):
        assert picture.read_text() == (learn.RESULTS / picture.name).read_text()


def test_every_run_is_a_valid_config_of_its_own(learn: ModuleType) -> None:
    configs = {name: load(str(learn.CONFIG), list(overrides)).config for name, overrides in learn.RUNS.items()}
    assert [name for name, config in configs.items() if config.train.shuffle_rewards] == ["shuffled-1"]
    assert len({config.run.seed for name, config in configs.items() if name.startswith("gspo")}) == 3
    train, held_out = load_all(configs["gspo-1"].tasks)
    assert len(train) >= 600 - 128 and len(held_out) >= 128
    assert {task.digest for task in train}.isdisjoint(task.digest for task in held_out)
