from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pathspec import GitIgnoreSpec

from lego.config.load import load as load_config
from lego.config.schema import ImagesSection, TaskSource
from lego.errors import ConfigError, TaskError
from lego.images import keys
from lego.images.plan import plan
from lego.images.recipes import task_recipe
from lego.tasks import swebench
from lego.tasks import swebench_recipes as recipes
from lego.tasks.load import load_tasks
from lego.tasks.swebench_rows import parse
from lego.tasks.task import LOG_PARSERS, Task
from lego.tasks.validate import warnings
from lego.verifier.logs.frameworks import PARSERS
from tests.conftest import CONFIGS
from tests.tasks.test_swebench_rows import ROW

SPEC = {
    "python": "3.11",
    "packages": "pytest 'attrs<24'",
    "pip_packages": ["tomli==2.0.1"],
    "install": "pip install -e .",
}
RECIPE = {
    "instance_id": "o__r-1", "sdist": "r==1.0", "sdist_file": "r-1.0.tar.gz", "sdist_sha256": "f" * 64,
    "python": "3.9", "pip_packages": ["pytest==7.4.4"], "install": "pip install --no-deps -e .",
    "test_cmd": "python -m pytest -rA", "test_files": ["tests/test_r.py"],
    "excluded_p2p": ["tests/test_r.py::test_c"],
}  # fmt: skip


def made(row: Mapping[str, Any], pinned: Mapping[str, Any] | None = None, **options: Any) -> Task:
    recipe = recipes.parse(recipes.Line(pinned, "recipe")) if pinned else None
    return swebench.make(parse(row, "row"), swebench.Options(**options), recipe, {}, "row")


def text_of(task: Task) -> str:
    return task.environment.context["Dockerfile"].data.decode()


def rows_file(folder: Path, *rows: Mapping[str, Any]) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_pinned_recipe_makes_the_image() -> None:
    task = made(ROW, RECIPE)
    text = text_of(task)
    assert text.startswith("FROM debian:bullseye\n") and "--no-deps pytest==7.4.4" in text
    assert "r==1.0" in text and f"{'f' * 64}' 'r-1.0.tar.gz | sha256sum -c" in text
    assert text.index("pip uninstall") > text.index("pip install --no-deps -e .") > text.index("sha256sum")
    # django's 6,800 files: a commit packed them in the background, was killed in it, and its lock kept the build's own
    # `git gc` from tidying up.
    assert "git -c gc.auto=0 " in text
    assert task.grading.excluded.keys() == {"tests/test_r.py::test_c"} and task.grading.pass_to_pass == ()
    assert warnings(task) == ["1 of its named tests is excluded"]


def test_the_packages_are_a_layer_that_tasks_share() -> None:
    one, other = text_of(made(ROW, RECIPE)), text_of(made(ROW, RECIPE | {"sdist": "r==1.1"}))
    assert one != other and one.splitlines()[:5] == other.splitlines()[:5]
    assert "--no-deps pytest" in "\n".join(one.splitlines()[:5])


def test_the_hidden_tests_and_the_fix_are_not_in_the_image() -> None:
    task = made(ROW, RECIPE)
    assert {"test.sh", "test.patch"} == set(task.tests) and {"solve.sh", "gold.patch"} == set(task.solution)
    assert set(task.environment.context) == {"Dockerfile"}
    hidden = (ROW["patch"], ROW["test_patch"], "test_b")
    assert not any(word in text_of(task) for word in hidden)


def test_the_script_marks_the_test_command_and_hides_the_words() -> None:
    script = made(ROW, RECIPE).tests["test.sh"].data.decode()
    lines = script.splitlines()
    assert lines.index("unset LEGO_WORD LEGO_CANARY") < lines.index("python -m pytest -rA tests/test_r.py $canary")
    assert subprocess.run(["bash", "-n"], input=script.encode()).returncode == 0


@pytest.mark.parametrize(
    ("repo", "path", "canary"),
    [
        ("o/r", "tests/test_r.py", "tests/test_w.py"),
        ("django/django", "tests/app/sub/test_r.py", "app.sub.test_w"),
        ("sympy/sympy", "sympy/core/tests/test_r.py", "sympy/core/tests/test_w.py"),
    ],
)
def test_the_canary_stands_beside_the_tests(repo: str, path: str, canary: str) -> None:
    patch = ROW["test_patch"].replace("tests/test_r.py", path)
    task = made(ROW | {"repo": repo, "test_patch": patch, "install_config": SPEC})
    assert task.grading.canary is not None
    named = task.grading.canary.named("w")
    assert named.argument == canary and named.path.endswith("/test_w.py") and "test_w" in named.code


def test_what_the_fix_must_change_is_not_protected() -> None:
    patch = ROW["patch"] + "\n" + ROW["patch"].replace("r.py", "setup.cfg") + "\n"
    task = made(ROW | {"patch": patch, "test_patch": ROW["test_patch"].replace("tests/", "checks/[x] ")}, RECIPE)
    spec = GitIgnoreSpec.from_lines(task.protected)
    assert not any(spec.match_file(path) for path in ("setup.cfg", "r.py"))
    assert all(spec.match_file(path) for path in ("tox.ini", "checks/[x] test_r.py", "a/tests/x.py"))


def test_the_files_that_are_run_are_protected_wherever_they_stand() -> None:
    """Rows without a test patch: what their tests were is in the agent's own container."""
    names = ["pkg/test_x.py::test_a", "testing/check.py::T::test_b[a b]", "test_root.py::test_c"]
    more = {"test_patch": "", "FAIL_TO_PASS": names[:1], "PASS_TO_PASS": names[1:], "install_config": SPEC}
    spec = GitIgnoreSpec.from_lines(made(ROW | more).protected)
    assert all(spec.match_file(name.partition("::")[0]) for name in names)
    assert not any(spec.match_file(path) for path in ("pkg/x.py", "r.py", "a/test_root.py"))


def test_a_spec_of_the_row_s_own_makes_the_image() -> None:
    text = text_of(made(ROW | {"install_config": SPEC}))
    assert text.startswith("FROM debian:bookworm\n") and "pytest 'attrs<24' tomli==2.0.1" in text
    assert f"fetch -q --depth 1 https://github.com/o/r {'a' * 40}" in text and "rm -rf /testbed/.git" in text
    assert "SETUPTOOLS_SCM_PRETEND_VERSION=1.0" in text
    assert text_of(made(ROW | {"install_config": SPEC | {"python": "3.6"}})).startswith("FROM python:3.6\n")
    assert text_of(made(ROW | {"install_config": SPEC}, bases={"3.11": "own"})).startswith("FROM own\n")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"packages": "environment.yml"}, "conda"),
        ({"docker_specs": {"go": 1}}, "another language"),
        ({"python": None}, "no python"),
        ({"packages": "pytest 'attrs<24"}, "packages: No closing quotation"),
        ({"pip_packages": 3}, "pip_packages must be a text or a list of texts"),
        ({"install": [None]}, "install must be"),
        ({"test_cmd": {"run": "tox"}}, "test_cmd must be"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(more: Mapping[str, Any], why: str) -> None:
    with pytest.raises(TaskError, match=why):
        made(ROW | {"install_config": SPEC | more})


def test_the_published_specs_are_read_from_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = types.ModuleType("swebench.harness.constants")
    constants.MAP_REPO_VERSION_TO_SPECS = {"o/r": {"1.0": SPEC | {"packages": "requirements.txt", "test_cmd": "tox"}}}  # type: ignore[attr-defined]
    constants.MAP_REPO_TO_REQS_PATHS = {"o/r": ["dev.txt"]}  # type: ignore[attr-defined]
    for name, module in (("swebench", types), ("swebench.harness", types), ("swebench.harness.constants", constants)):
        monkeypatch.setitem(sys.modules, name, module)
    task = made(ROW)
    assert "for f in dev.txt" in text_of(task) and b"tox tests/test_r.py $canary" in task.tests["test.sh"].data
    with pytest.raises(TaskError, match="have no o/r 9"):
        made(ROW | {"version": "9"})


def test_without_their_package_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "swebench", None)
    with pytest.raises(TaskError) as raised:
        made(ROW)
    assert "lego[swebench]" in raised.value.hint and "recipes" in raised.value.hint


def test_a_named_image_becomes_one_commit() -> None:
    text = text_of(made(ROW | {"docker_image": "example/image", "install_config": SPEC}))
    assert text.startswith("FROM example/image\n") and "rm -rf /testbed/.git " in text and "commit -q" in text


def test_a_row_that_puts_the_bug_in_is_solved_by_taking_it_out() -> None:
    names = ("instance_id", "repo", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")
    task = made({name: ROW[name] for name in names} | {"image_name": "example/image"})
    assert "git apply --whitespace=nowarn /tmp/bug.patch" in text_of(task)
    assert b"git apply --whitespace=nowarn -R" in task.solution["solve.sh"].data
    assert "test.patch" not in task.tests and task.grading.parser == "swesmith"
    assert b"pytest -rA tests/test_r.py $canary" in task.tests["test.sh"].data


def test_a_mirror_gives_the_tree_of_one_commit(tmp_path: Path) -> None:
    mirror = tmp_path / "o__r"
    git = ["git", "-C", str(mirror), "-c", "user.name=x", "-c", "user.email=x@x"]
    subprocess.run(["git", "init", "-q", str(mirror)], check=True)
    (mirror / "r.py").write_text("a\n")
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "a"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (mirror / "r.py").write_text("the fix\n")
    subprocess.run([*git, "commit", "-qam", "fix"], check=True)
    row = ROW | {"base_commit": commit, "install_config": SPEC}
    task = made(row, mirror=str(tmp_path))
    archive = task.environment.context["source.tar"].data
    assert b"r.py" in archive and b"the fix" not in archive and "ADD source.tar /testbed/" in text_of(task)
    with pytest.raises(TaskError, match="does not give commit"):
        made(row | {"base_commit": "b" * 40}, mirror=str(tmp_path))
    with pytest.raises(TaskError, match="no mirror of p/q"):
        made(row | {"repo": "p/q"}, mirror=str(tmp_path))


def test_a_source_of_rows(tmp_path: Path) -> None:
    rows = rows_file(tmp_path, ROW, ROW | {"instance_id": "o__r-2"}, {"instance_id": "o__r-3"})
    file = tmp_path / "recipes.jsonl"
    file.write_text(json.dumps(RECIPE) + "\n")
    source = TaskSource(source="swebench", path=str(rows), options={"recipes": str(file)})
    (task,) = load_tasks([source])
    assert task.id == "o__r-1" and task.digest == load_tasks([source])[0].digest
    problems: list[TaskError] = []
    # Without recipes each row needs an environment, and the last is no row.
    assert load_tasks([TaskSource(source="swebench", path=str(rows))], on_problem=problems.append) == []
    assert len(problems) == 3 and "not a SWE-bench row" in problems[2].message
    with pytest.raises(ConfigError, match="no such option: recipe"):
        load_tasks([TaskSource(source="swebench", path=str(rows), options={"recipe": "x"})])


def test_tests_are_excluded_by_file(tmp_path: Path) -> None:
    rows, file = rows_file(tmp_path, ROW | {"install_config": SPEC}), tmp_path / "out.json"
    source = TaskSource(source="swebench", path=str(rows), options={"exclusions": str(file)})
    file.write_text(json.dumps({"o__r-1": {"tests/test_r.py::test_c": "times out"}}))
    (task,) = load_tasks([source])
    assert task.grading.excluded == {"tests/test_r.py::test_c": "times out"} and not task.grading.pass_to_pass
    file.write_text(json.dumps({"o__r-1": dict.fromkeys(parse(ROW, "x").fail_to_pass, "no")}))
    with pytest.raises(TaskError, match="every test that the fix"):
        load_tasks([source])
    file.write_text("[]")
    with pytest.raises(ConfigError, match="exclusions"):
        load_tasks([source])


def test_every_parser_that_a_source_names_is_there() -> None:
    assert {"pytest", "swesmith", "r2e", *swebench._PARSERS.values()} <= set(PARSERS) == set(LOG_PARSERS)


def test_a_parser_that_nobody_has_is_refused_when_the_row_is_read() -> None:
    with pytest.raises(TaskError, match="row: install_config: log_parser: .*parse_log_jest") as caught:
        made(ROW | {"install_config": SPEC | {"log_parser": "parse_log_jest"}})
    assert "pytest_v2" in caught.value.hint


def test_tasks_of_two_debian_releases_have_two_bases() -> None:
    section = ImagesSection()
    tasks = [made(ROW, RECIPE), made(ROW | {"instance_id": "o__r-2"}, RECIPE | {"python": "3.11"})]
    jobs = plan(tasks, [], section)
    assert sorted(job.name for job in jobs if job.kind == "base") == ["debian:bookworm", "debian:bullseye"]
    for task in tasks:
        recipe = task_recipe(task, section)
        assert recipe.base in {job.tag for job in jobs} and recipe.restore_user == "0"
    pulled = task_recipe(tasks[0], ImagesSection(base="registry:example/base"))
    assert pulled.base == "debian:bullseye" and keys.base_tag(ImagesSection()) != pulled.base


def test_the_shipped_config_makes_all_of_its_tasks(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEBENCH_DATA", str(shared_data))
    config = load_config(CONFIGS / "swebench-sdists.yaml").config
    tasks = load_tasks(config.tasks.train)
    assert len(tasks) == 41 and len({text_of(task) for task in tasks}) == 35
    recipes = map(json.loads, (shared_data / "swebench_sdists.jsonl").read_text().splitlines())
    by_id = {task.id: task for task in tasks}
    for recipe in recipes:
        grading = by_id[recipe["instance_id"]].grading
        assert set(grading.fail_to_pass) == set(recipe["f2p"]) and set(grading.pass_to_pass) == set(recipe["p2p"])
        assert grading.canary is not None
