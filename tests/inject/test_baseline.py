"""What is measured before any bug, from what a worker would say; and projects that give nothing."""

from __future__ import annotations

import pytest

from lego.config.schema import ImagesSection
from lego.errors import TaskError
from lego.inject.baseline import Baseline, measure
from lego.inject.bench import Ran
from lego.inject.layout import Layout
from lego.inject.run import Shop, Wanted, inject
from lego.inject.source import Project
from lego.sandbox.create import Limits

PROJECT = Project("pkg", "1", {}, "", "")
LAYOUT = Layout(("t.py",), ("t.py",), ("a.py",), "[pytest]\n", (), False)


class Worker:
    """Says what it was given, one run after the other."""

    def __init__(self, *runs):
        self.facts = {"plugins": [["asyncio", "pytest-asyncio"], ["own", "Pkg"]]}
        self.runs = list(runs)

    async def tests(self, ask, files=None):
        return self.runs.pop(0)


def ran(lines=None, uncollected=None, hung=False, **outcomes):
    tests = {f"t.py::{name}": {"outcome": outcome, "seconds": 0.5} for name, outcome in outcomes.items()}
    return Ran(tests, uncollected or {}, lines or {}, hung, "the log")


async def test_what_is_not_green_twice_is_left_out():
    lines = {"a.py": {3: ("t.py::a", "t.py::red", "t.py::d"), 5: ("t.py::d",)}, "other.py": {1: ("t.py::a",)}}
    worker = Worker(
        ran(a="passed", red="failed", flaky="passed", d="passed", skip="skipped"),
        ran(a="passed", red="failed", flaky="failed", d="passed", skip="skipped"),
        ran(lines),
    )
    found = await measure(worker, PROJECT, LAYOUT, 5.0)
    assert found.stable == ("t.py::a", "t.py::d")
    assert found.excluded == {
        "t.py::red": "failed", "t.py::flaky": "flaky: passed then failed", "t.py::skip": "skipped",
    }  # fmt: skip
    assert found.tests_of("a.py", (1, 4)) == ("t.py::a", "t.py::d") and found.tests_of("a.py", (4, 9)) == ("t.py::d",)
    assert found.tests_of("other.py", (1, 1)) == () and found.plugins == ("asyncio",)
    assert Baseline.from_json(found.to_json()) == found


@pytest.mark.parametrize(
    ("run", "told", "hint"),
    [
        (ran(uncollected={"t.py": "No module named 'x'"}), "no tests found that can be run", "No module named 'x'"),
        (ran(), "no tests found that can be run", "test_\\*.py"),
        (ran(hung=True), "did not end by themselves, as it stands; the last they said: 'the log'", "left out"),
        (
            ran(a="failed", b="failed"),
            r"none of its 2 tests passes each time .*\(2 failed\)",
            "first is t.py::a; tests that need",
        ),
        (ran(a="failed"), r"none of its one test passes each time .*\(1 failed\)", "--with PACKAGE"),
    ],
)
async def test_suites_that_cannot_be_used(run, told, hint):
    with pytest.raises(TaskError, match=told) as error:
        await measure(Worker(run, run, run), PROJECT, LAYOUT, 5.0)
    assert hint.replace("\\", "") in error.value.hint


@pytest.mark.parametrize(("which", "told"), [(1, "the second time"), (2, "under coverage")])
async def test_a_run_that_was_broken_off_is_no_measure(which, told):
    runs = [ran(a="passed"), ran(a="passed"), ran({"a.py": {1: ("t.py::a",)}}, a="passed")]
    runs[which] = ran({"a.py": {1: ("t.py::a",)}}, a="passed", hung=True)
    with pytest.raises(TaskError, match=f"did not end by themselves, {told}"):
        await measure(Worker(*runs), PROJECT, LAYOUT, 5.0)


async def test_a_folder_without_tests(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_text("x = 1\n")
    shop = Shop(None, ImagesSection(), Limits(), tmp_path / "out", print, print)
    with pytest.raises(TaskError, match="no tests found"):
        await inject(Wanted(str(tmp_path / "pkg"), 1, 1, 1), shop)
    assert [path.name for path in tmp_path.iterdir()] == ["pkg"]


@pytest.mark.parametrize(
    ("place", "made", "told"),
    [
        ("out/pkg-12345678/task.toml", '[metadata]\npackage = "pkg"\nversion = "0.9"\n', "holds tasks of pkg 0.9"),
        ("out/task.toml", "", "is itself a task"),
        ("out", "", "out is a file"),
    ],
)
async def test_folders_that_are_no_place_for_the_tasks(tmp_path, place, made, told):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/test_a.py").write_text("x = 1\n")
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).write_text(made)
    shop = Shop(None, ImagesSection(), Limits(), tmp_path / "out", print, print)
    with pytest.raises(TaskError, match=told) as error:
        await inject(Wanted(str(tmp_path / "pkg"), 1, 1, 1), shop)
    assert "--out" in error.value.hint


async def test_a_task_of_somebody_elses_says_nothing_of_versions(tmp_path):
    for name, made in (("pkg-1", "metadata = 5\n"), ("pkg-2", '[metadata]\npackage = "pkg"\nversion = "0.9"\n')):
        (tmp_path / "out" / name).mkdir(parents=True)
        (tmp_path / "out" / name / "task.toml").write_text(made)
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/test_a.py").write_text("x = 1\n")
    shop = Shop(None, ImagesSection(), Limits(), tmp_path / "out", print, print)
    with pytest.raises(TaskError, match=r"holds tasks of pkg 0\.9"):
        await inject(Wanted(str(tmp_path / "pkg"), 1, 1, 1), shop)
