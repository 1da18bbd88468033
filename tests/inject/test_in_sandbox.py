"""A small project from its folder to tasks, in real sandboxes: made, made again, gone on with, graded, attacked."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from lego.config.schema import ImagesSection
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.inject.run import Shop, Wanted, inject
from lego.sandbox.create import Limits
from lego.sandbox.layers import Entry
from lego.sandbox.submission import Submission
from lego.tasks import harbor
from lego.tasks.validate import warnings
from lego.verifier.grade import Nothing, Oracle, verify
from tests.inject.test_grade import SAYS_EVERYTHING

pytestmark = pytest.mark.podman

DATA = Path(__file__).parents[1] / "tasks" / "data"
SCHEMA = json.loads((DATA / "harbor_0.26_task_toml.schema.json").read_text())

MODULE = '''\
"""Windows over numbers."""


def clamp(value, low, high):
    if value < low:
        return low
    if value > high:
        return high
    return value


def windows(items, size):
    found = []
    for start in range(len(items) - size + 1):
        found.append(items[start : start + size])
    return found


def mean(items, default=None):
    if not items:
        return default
    return sum(items) / len(items)
'''
TESTS = """\
import os
import random

import pytest
from numbersy.core import clamp, mean, windows


@pytest.mark.parametrize("value,want", [(1, 2), (2, 2), (3, 3), (4, 4), (5, 4)])
def test_limits(value, want):
    assert clamp(value, 2, 4) == want


def test_slices():
    assert windows([1, 2, 3], 2) == [[1, 2], [2, 3]]
    assert windows([1], 2) == []


def test_average():
    assert mean([2, 4]) == 3
    assert mean([], 7) == 7


def test_nothing_of_the_kind():
    assert clamp is not mean


def test_red():
    assert clamp(1, 2, 4) == 1


def test_flaky():
    assert not os.path.exists("/tmp/pycache/seen"), "once"
    os.makedirs("/tmp/pycache/seen")
"""
HOOK = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    outcome = yield
    outcome.get_result().outcome = "passed"
"""


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "numbersy"
    for name, text in (
        ("numbersy/__init__.py", ""),
        ("numbersy/core.py", MODULE),
        ("tests/test_core.py", TESTS),
        ("tests/__init__.py", ""),
    ):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    return place


def shop(podman, out, told=lambda told: None):
    return Shop(podman, ImagesSection(), Limits(), out, lambda line: None, told)


def contents(out):
    return {path.relative_to(out): path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}


async def test_from_a_folder_to_tasks(podman, folder, tmp_path):
    made = await inject(Wanted(str(folder), 3, 1, 2), shop(podman, tmp_path / "one"))
    assert len(made.tasks) == 3 and made.tests == 8
    assert made.excluded == {
        "tests/test_core.py::test_red": "failed",
        "tests/test_core.py::test_flaky": "flaky: passed then failed",
    }

    # The same seed gives the same tasks, whatever the number of workers, and however often it is stopped on the way.
    first = shop(podman, tmp_path / "two", lambda told: stopped.cancel() if told.kept else None)
    stopped = asyncio.create_task(inject(Wanted(str(folder), 3, 1, 1), first))
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert [path.name for path in (tmp_path / "two").iterdir()] == made.tasks[:1]
    again = await inject(Wanted(str(folder), 3, 1, 1), shop(podman, tmp_path / "two"))
    assert again.tasks == made.tasks
    assert [path.name for path in harbor.find(tmp_path / "two")] == sorted(made.tasks)
    assert {path: data for path, data in contents(tmp_path / "one").items() if path.suffix != ".json"} == {
        path: data for path, data in contents(tmp_path / "two").items() if path.suffix != ".json"
    }

    tasks = [harbor.load(path) for path in harbor.find(tmp_path / "one")]
    section = ImagesSection()
    assert len({task_tag(task, section) for task in tasks}) == 1
    for result in await Builder(podman, section, tmp_path / "logs").build(plan(tasks, (), section)):
        assert result.status == "cached", (result.reason, result.log_path.read_text())
    for task in tasks:
        jsonschema.validate(tomllib.loads(Path(task.where, "task.toml").read_text()), SCHEMA)
        assert warnings(task) == [] and len(task.demonstration) == 2
        names = json.loads(task.tests["names.json"].data)
        assert names["fail_to_pass"] and names["pass_to_pass"]
        assert not set(names["fail_to_pass"]) & set(names["pass_to_pass"])
        agent_sees = task.environment.workspace["/app/tests/test_core.py"].data
        assert all(f"def {name.rpartition('::')[2].partition('[')[0]}(".encode() not in agent_sees
                   for name in names["fail_to_pass"])  # fmt: skip
        assert not any(word in task.instruction for word in ("core", "clamp", "windows", "mean"))
        assert "```python" in task.instruction and "___(" in task.instruction

    async def grade(candidate, task=tasks[0]):
        verdict = await verify(podman, task, task_tag(task, section), candidate, Limits())
        return verdict.outcome, verdict.log, verdict.detail["seen"]

    for task in tasks:
        outcome, log, seen = await grade(Oracle(), task)
        assert (outcome, seen["sessions"], seen["reached"]) == ("passed", 1, ()), (log, seen)
        assert (await grade(Nothing(), task))[0] == "failed"
    for path, data in (
        ("/app/conftest.py", HOOK),
        ("/app/numbersy/conftest.py", HOOK),
        ("/app/tests/test_core.py", b"def test_slices():\n    pass\n"),
        ("/app/pytest.ini", b"[pytest]\naddopts = --collect-only\n"),
        ("/app/numbersy/__init__.py", b"import os\nos._exit(0)\n"),
        ("/app/numbersy/__init__.py", SAYS_EVERYTHING.encode()),
    ):
        outcome, log, _ = await grade(Submission(("/app",), (Entry(path, "file", 0o644, data),)))
        assert outcome == "failed", (path, log)
