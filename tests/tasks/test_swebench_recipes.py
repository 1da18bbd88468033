from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lego.config.schema import TaskSource
from lego.errors import TaskError
from lego.tasks.load import load_tasks
from lego.tasks.swebench_recipes import Line, parse, read
from tests.tasks.test_swebench import RECIPE, rows_file
from tests.tasks.test_swebench_rows import ROW


def recipes_file(folder: Path, *recipes: Mapping[str, Any]) -> Path:
    path = folder / "recipes.jsonl"
    path.write_text("".join(json.dumps(recipe) + "\n" for recipe in recipes))
    return path


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"sdist_sha256": None}, "sdist_sha256 must be a text"),
        ({"sdist_sha256": "f" * 63}, "sdist_sha256 must be 64 hexadecimal digits"),
        ({"install": ["pip install ."], "python": 3.9}, "python must be a text, install must be a text"),
        ({"pip_packages": "pytest==7.4.4"}, "pip_packages must be a list of texts"),
        ({"test_files": [3]}, "test_files must be a list of texts"),
        ({"excluded_p2p": 3}, "excluded_p2p must be a list of texts"),
    ],
)
def test_a_broken_recipe_is_named_with_its_line(broken: Mapping[str, Any], why: str) -> None:
    with pytest.raises(TaskError) as raised:
        parse(Line(RECIPE | broken, "recipes.jsonl line 7"))
    assert raised.value.message == f"recipes.jsonl line 7: not a recipe: {why}"


def test_a_broken_recipe_costs_its_own_row_alone(tmp_path: Path) -> None:
    rows = rows_file(tmp_path, ROW, ROW | {"instance_id": "o__r-2"})
    file = recipes_file(tmp_path, RECIPE | {"install": None}, RECIPE | {"instance_id": "o__r-2"})
    source = TaskSource(source="swebench", path=str(rows), options={"recipes": str(file)})
    problems: list[TaskError] = []
    assert [task.id for task in load_tasks([source], on_problem=problems.append)] == ["o__r-2"]
    assert [problem.message.partition(": ")[0] for problem in problems] == [f"{file} line 1"]
    with pytest.raises(TaskError) as raised:
        load_tasks([source])
    assert raised.value.fault == "user" and "lego tasks validate" in raised.value.hint


@pytest.mark.parametrize(
    ("recipes", "why"),
    [
        ([RECIPE, RECIPE], "line 2: a second recipe for o__r-1; the first is"),
        ([RECIPE | {"instance_id": 3}], "line 1: a recipe needs an instance_id"),
    ],
)
def test_a_file_that_does_not_say_which_recipe_is_whose(
    tmp_path: Path, recipes: list[Mapping[str, Any]], why: str
) -> None:
    with pytest.raises(TaskError, match=why):
        read(recipes_file(tmp_path, *recipes))


def test_files_that_do_not_belong_together_or_are_not_there(tmp_path: Path) -> None:
    rows, file = rows_file(tmp_path, ROW), recipes_file(tmp_path, RECIPE | {"instance_id": "p__q-1"})
    with pytest.raises(TaskError, match=f"{rows} has no row that {file} has a recipe for"):
        load_tasks([TaskSource(source="swebench", path=str(rows), options={"recipes": str(file)})])
    missing = tmp_path / "nowhere.jsonl"
    with pytest.raises(TaskError) as raised:
        load_tasks([TaskSource(source="swebench", path=str(rows), options={"recipes": str(missing)})])
    assert raised.value.message == f"{missing}: cannot be read: No such file or directory"
    assert "options.recipes" in raised.value.hint
