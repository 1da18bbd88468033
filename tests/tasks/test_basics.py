"""The 24 tasks of configs/tasks/basics, graded on this machine; `lego verify --oracle` does it in sandboxes."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest

from lego.tasks.harbor import load
from lego.tasks.validate import warnings
from tests.attacks.hacks import RELAYS, TAKES_THE_SEAL, TURNS_LINES
from tests.conftest import CONFIGS

BASICS = CONFIGS / "tasks" / "basics"
FOLDERS = sorted(path for path in BASICS.iterdir() if path.is_dir())
SCHEMA = json.loads((Path(__file__).parent / "data" / "harbor_0.26_task_toml.schema.json").read_text())
each = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)


class Bench:
    """A copy of a task's repository and a place for its reward."""

    def __init__(self, folder, place):
        self.folder, self.app, self.out = folder, place / "app", place / "out"
        shutil.copytree(folder / "environment" / "repo", self.app)
        self.out.mkdir()

    def solve(self):
        env = {**os.environ, "APP": str(self.app), "GIT_CEILING_DIRECTORIES": str(self.app.parent)}
        subprocess.run(["sh", str(self.folder / "solution" / "solve.sh")], env=env, check=True)

    def write(self, name, text):
        (self.app / name).parent.mkdir(parents=True, exist_ok=True)
        (self.app / name).write_text(text)

    def grade(self):
        grader = self.folder / "tests" / "grade.py"
        command = [sys.executable, "-I", "-B", str(grader), "--app", str(self.app), "--out", str(self.out)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return (self.out / "reward.txt").read_text().strip(), done.stdout


@pytest.fixture
def bench(tmp_path):
    return Bench(BASICS / "last-page", tmp_path)


def test_there_are_24():
    assert len(FOLDERS) == 24
    difficulties = [load(folder).metadata["difficulty"] for folder in FOLDERS]
    assert all(difficulties.count(one) >= 4 for one in ("easy", "medium", "hard"))


@each
def test_fails_with_nothing_done(folder, tmp_path):
    reward, log = Bench(folder, tmp_path).grade()
    assert reward == "0", log
    assert "the canary failed as it must" in log
    assert re.search(r": passed$", log, re.MULTILINE), "no test guards what works already"


@each
def test_passes_with_its_solution(folder, tmp_path):
    bench = Bench(folder, tmp_path)
    bench.solve()
    reward, log = bench.grade()
    assert reward == "1", log


@each
def test_written_as_harbor_wants(folder):
    jsonschema.validate(tomllib.loads((folder / "task.toml").read_text()), SCHEMA)
    task = load(folder)
    assert warnings(task) == []
    assert len(task.demonstration) == 2


@each
def test_instruction_does_not_name_the_place(folder):
    text = (folder / "instruction.md").read_text()
    changed = re.findall(r"^\+\+\+ b/(\S+)$", (folder / "solution/solve.sh").read_text(), re.MULTILINE)
    assert changed
    for path in changed:
        assert path not in text and path.rpartition("/")[2] not in text


def test_shared_files_are_the_same_everywhere():
    for name in ("environment/Dockerfile", "tests/test.sh", "tests/grade.py"):
        assert len({(folder / name).read_bytes() for folder in FOLDERS}) == 1, name


def test_conftest_hook_earns_nothing(bench):
    bench.write(
        "conftest.py",
        "import pytest\n\n@pytest.hookimpl(hookwrapper=True)\ndef pytest_runtest_makereport():\n"
        "    outcome = yield\n    outcome.get_result().outcome = 'passed'\n",
    )
    bench.write("shop/conftest.py", (bench.app / "conftest.py").read_text())
    assert bench.grade()[0] == "0"


def test_settings_earn_nothing(bench):
    bench.write("pytest.ini", "[pytest]\naddopts = --collect-only\npython_functions = nothing_*\n")
    bench.write("tox.ini", "[pytest]\naddopts = --deselect test_hidden.py\n")
    assert bench.grade()[0] == "0"
    bench.solve()
    assert bench.grade()[0] == "1"


def test_start_up_hooks_and_shadowing_earn_nothing(bench):
    for name in ("sitecustomize.py", "usercustomize.py", "pytest.py", "shop/__init__.py"):
        bench.write(name, "import os\nos._exit(0)\n" if name != "shop/__init__.py" else "")
    bench.solve()
    assert bench.grade()[0] == "1"


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(0)\n",
        "import pytest\npytest.exit('done', returncode=0)\n",
        "import pytest\npytest.skip('not today', allow_module_level=True)\n",
        "import sys, types\nsys.modules['shop.paging'] = types.ModuleType('shop.paging')\n",
        "import _pytest.runner as r\nr.pytest_runtest_call = lambda item: None\n"
        "import _pytest.python as p\np.Function.runtest = lambda self: None\n",
        TAKES_THE_SEAL,
        RELAYS,
        TURNS_LINES,
    ],
)
def test_code_that_meddles_with_the_run_earns_nothing(bench, code):
    bench.write("shop/__init__.py", code)
    assert bench.grade()[0] == "0"


def test_reward_written_by_the_submission_is_replaced(bench):
    bench.write(
        "shop/__init__.py",
        f"for name in ('reward.txt', 'reward.json'):\n    open('{bench.out}/' + name, 'w').write('1')\n",
    )
    assert bench.grade()[0] == "0"
    assert not (bench.out / "reward.json").exists()


def test_endless_test_is_cut(bench):
    bench.write(
        "shop/paging.py",
        (bench.app / "shop/paging.py")
        .read_text()
        .replace("    return max(1,", "    while total == 0:\n        pass\n    return max(1,"),
    )
    reward, log = bench.grade()
    assert reward == "0" and "test_hidden.test_empty_is_one_page: failure" in log
