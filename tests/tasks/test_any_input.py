"""Whatever stands in the files that people write for tasks: a task, or one line that says where and what; never a
traceback, and never a line that nobody thought of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lego.config.schema import TaskSource
from lego.errors import ConfigError, LegoError, TaskError
from lego.tasks import swebench
from lego.tasks.load import load_tasks
from lego.tasks.reading import UNFORESEEN
from lego.tasks.task import Task
from tests._anything import ANYTHING, TEXTS, spoilt
from tests._toml import document
from tests.tasks.test_swebench import RECIPE, SPEC
from tests.tasks.test_swebench_rows import R2E, ROW, r2e_file

MANY = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))

TOML: dict[str, Any] = {
    "schema_version": "1.4", "source": "somewhere", "artifacts": ["/out", {"source": "/a", "exclude": ["*.o"]}],
    "task": {"name": "org/one", "version": "1", "description": "d", "authors": [{"name": "A"}], "keywords": ["k"]},
    "metadata": {"difficulty": "easy", "lego": {"roots": ["/app"], "protected": ["tests/", "*.cfg"], "freeze": True}},
    "agent": {"timeout_sec": 90.0, "user": 1000}, "solution": {"env": {"C": "d"}},
    "verifier": {
        "timeout_sec": 30.0, "env": {"A": "b"}, "collect": [{"command": "true"}], "environment_mode": "separate",
        "environment": {"cpus": 1.0, "docker_image": "x"},
    },
    "environment": {
        "cpus": 1.5, "memory_mb": 256, "storage_mb": 10, "workdir": "/srv", "env": {"A": "${B:-c}"},
        "build_timeout_sec": 9.0, "healthcheck": {"command": "true", "retries": 2}, "network_mode": "no-network",
    },
}  # fmt: skip
PLAIN: dict[str, Any] = {
    "environment": {"memory": "1G", "storage": "2G", "allow_internet": False, "docker_image": "a/b:c"},
    "metadata": {"lego": {"grader": "pytest-ids"}}, "verifier": {"user": "root"},
}  # fmt: skip
OVERLAID: dict[str, Any] = {
    "metadata": {"lego": {"stage": "base", "over": ["a.tar", "more"]}}, "environment": {"workdir": "/app"},
}  # fmt: skip
STEPS: dict[str, Any] = {
    "multi_step_reward_strategy": "final", "environment": {"workdir": "/srv"},
    "steps": [
        {"name": "one", "min_reward": 0.5, "verifier": {"timeout_sec": 7.0, "env": {"A": "b"}}},
        {"name": "two", "artifacts": ["/out"], "healthcheck": {"command": "true"}, "agent": {"timeout_sec": 5.0}},
    ],
}  # fmt: skip
NAMES = {"fail_to_pass": ["t.py::a"], "pass_to_pass": ["t.py::b"]}
FILES = {
    "instruction.md": b"Fix it.\n", "environment/Dockerfile": b"FROM a AS base\nWORKDIR /srv\nFROM base\n",
    "environment/more/x.py": b"x = 1\n", "environment/a.tar": bytes(10240), "solution/solve.sh": b"#!/bin/sh\ntrue\n",
    "tests/test.sh": b"#!/bin/sh\npip install -r /tests/needs.txt\necho 1 > /logs/verifier/reward.txt\n",
    "tests/needs.txt": b"pytest==9.2.0\n", "tests/names.json": json.dumps(NAMES).encode(),
    "tests/.harborignore": b"*.o\n!keep.o\n", "solution/sub/.harborignore": b"x\n",
}  # fmt: skip
STEP_FILES = {f"steps/{name}/{file}": data for name in ("one", "two") for file, data in (("instruction.md", b"Do.\n"),)}


def sources(loaded: Callable[[list[LegoError]], Sequence[Task]], *names: str) -> None:
    """Every file came to be a task, or to be one line that names it."""
    problems: list[LegoError] = []
    try:
        loaded(problems)
    except (TaskError, ConfigError) as error:
        problems.append(error)
    for problem in problems:
        assert isinstance(problem, TaskError | ConfigError)
        assert "\n" not in problem.message and UNFORESEEN not in problem.message, problem.message[:500]
        assert not names or any(name in problem.message for name in names), problem.message[:500]
        assert len(problem.message) < 4000 and problem.message.encode()


def write(folder: Path, files: dict[str, bytes]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def harbor(path: Path, **more: Any) -> None:
    source = TaskSource(source="harbor", path=str(path), **more)
    sources(lambda problems: load_tasks([source], on_problem=problems.append), str(path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


@MANY
@given(spoilt(TOML, PLAIN, OVERLAID, STEPS))
@example({"environment": {"memory": "9" * 400 + "G"}})
@example({"metadata": {"lego": {"protected": ["!"]}}})
def test_task_toml(folder: Path, data: Any) -> None:
    text = document(data) if isinstance(data, dict) else str(data)
    steps = STEP_FILES if isinstance(data, dict) and "steps" in data else {}
    write(folder / "t", {**FILES, **steps, "task.toml": text.encode(errors="surrogatepass")})
    harbor(folder / "t")


HUGE = f"0x1{'0' * 4200}"
"""More digits than Python writes out in decimals."""


@pytest.mark.parametrize(
    "text",
    [
        f"[environment]\nmemory_mb = {HUGE}", f"[metadata]\na = {HUGE}", f"[agent]\nuser = {HUGE}",
        f"[environment]\ncpus = {HUGE}", f"a = {'9' * 5000}", f"a = {'[' * 100_000}", "[metadata]\nlego = 1",
        "a = 1979-05-27T07:32:00Z\nb = 07:32:00", "source = \"\\u0000\"",
    ],
)  # fmt: skip
def test_toml_that_no_value_stands_for(folder: Path, text: str) -> None:
    for name in ("task.toml", "dataset.toml"):
        write(folder / "h", {**FILES, name: text.encode()})
        harbor(folder / "h")


@MANY
@given(st.sampled_from(sorted(FILES)), st.binary(max_size=40) | TEXTS.map(lambda text: text.encode(errors="replace")),
       st.sampled_from([TOML, PLAIN, OVERLAID]), st.integers(0, 99))  # fmt: skip
@example("tests/.harborignore", b"!\n", PLAIN, 0)
@example("tests/.harborignore", b"\xff\n", PLAIN, 0)
@example("tests/needs.txt", b"\xff\n", PLAIN, 0)
@example("tests/names.json", b"[" * 100_000, PLAIN, 0)
@example("environment/a.tar", b"\x1f\x8b\x08\x00" + bytes(60), OVERLAID, 0)
def test_the_files_of_a_folder(folder: Path, name: str, data: bytes, toml: dict[str, Any], cut: int) -> None:
    before = FILES[name]
    changed = {**FILES, name: before[:cut] + data + before[cut + len(data) :], "task.toml": document(toml).encode()}
    write(folder / "f", changed)
    harbor(folder / "f")


@pytest.mark.parametrize("name", ["environment/loop", "tests/loop", "task.toml", "tests/names.json"])
def test_links_that_lead_back(folder: Path, name: str) -> None:
    write(folder / "l", {**FILES, "task.toml": document(PLAIN).encode()})
    path = folder / "l" / name
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)
    with pytest.raises(TaskError, match=str(folder / "l")) as caught:
        load_tasks([TaskSource(source="harbor", path=str(folder / "l"))])
    assert UNFORESEEN not in caught.value.message


def rows(path: Path, **options: Any) -> None:
    sources(lambda problems: swebench.load(path, options, on_problem=problems.append), str(path.parent))


R2E_ROW = R2E | {
    "parsed_commit_content": json.dumps({"file_diffs": [r2e_file("a.py", "x", ("added", "a = 1"), old=0, new=1)]})
}
OWN = ROW | {"install_config": SPEC | {"log_parser": "parse_log_pytest", "eval_commands": ["true"]}}
IMAGE = OWN | {"docker_image": "example/image"}
SMITH = {key: ROW[key] for key in ("instance_id", "repo", "problem_statement", "patch", "FAIL_TO_PASS")} | {
    "image_name": "example/image"
}


@MANY
@given(spoilt(OWN, IMAGE, SMITH, R2E_ROW))
@example(OWN | {"patch": "\ud800"})
@example(OWN | {"instance_id": ["x"]})
@example(OWN | {"base_commit": "--output=/tmp/x"})
@example(R2E_ROW | {"expected_output_json": "[" * 100_000})
def test_rows(folder: Path, data: Any) -> None:
    (folder / "rows.jsonl").write_text(json.dumps(data) + "\n" + json.dumps(IMAGE) + "\n")
    rows(folder / "rows.jsonl")
    rows(folder / "rows.jsonl", mirror=str(folder))


@MANY
@given(
    spoilt(OWN).map(lambda row: row.get("install_config") if isinstance(row, dict) else row) | ANYTHING, st.booleans()
)
def test_the_environment_of_a_row(folder: Path, spec: Any, image: bool) -> None:
    row = (IMAGE if image else OWN) | {"install_config": spec}
    (folder / "spec.jsonl").write_text(json.dumps(row) + "\n")
    rows(folder / "spec.jsonl")


@MANY
@given(spoilt(RECIPE), spoilt({"o__r-1": {"tests/test_r.py::test_c": "no"}}))
@example(RECIPE | {"pip_packages": None}, {})
@example(RECIPE | {"test_files": None}, {})
@example(RECIPE | {"excluded_p2p": 3}, {})
def test_recipes_and_exclusions(folder: Path, recipe: Any, excluded: Any) -> None:
    (folder / "r.jsonl").write_text(json.dumps(ROW) + "\n")
    (folder / "recipes.jsonl").write_text(json.dumps(recipe) + "\n" + json.dumps(RECIPE) + "\n")
    (folder / "excluded.json").write_text(json.dumps(excluded))
    rows(folder / "r.jsonl", recipes=str(folder / "recipes.jsonl"))
    rows(folder / "r.jsonl", recipes=str(folder / "recipes.jsonl"), exclusions=str(folder / "excluded.json"))


@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "x.json", "x.json.gz", "x.parquet"])
@pytest.mark.parametrize("data", [b"[" * 100_000, b"\xff\n", b"\x1f\x8b\x08\x00" + bytes(60), b"PAR1" * 9, b"{}\n1\n"])
def test_files_of_rows(folder: Path, name: str, data: bytes) -> None:
    (folder / name).write_bytes(data)
    rows(folder / name)


def test_a_line_that_is_no_row_costs_that_line_alone(folder: Path) -> None:
    lines = [json.dumps(IMAGE), "[" * 100_000, json.dumps(IMAGE | {"instance_id": "two"}), "3", "\udcff"]
    (folder / "some.jsonl").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    problems: list[LegoError] = []
    tasks = swebench.load(folder / "some.jsonl", {}, on_problem=problems.append)
    assert [task.id for task in tasks] == ["o__r-1", "two"]
    assert [problem.message.partition(": ")[0][-6:] for problem in problems] == ["line 2", "line 4", "line 5"]


@MANY
@given(st.sampled_from(["harbor", "swebench", "family"]), spoilt(
    {"network": "sealed", "host_env": ["HOME"], "mirrors": {"a": "b"}},
    {"bases": {"3.9": "x"}, "git": "https://x/{repo}", "mirror": "m", "recipes": "r", "exclusions": "e"},
), TEXTS)  # fmt: skip
@example("harbor", {"host_env": 5}, "")
@example("harbor", {"host_env": "HOME"}, "")
@example("harbor", {"mirrors": "x"}, "")
@example("swebench", {"bases": "x"}, "")
@example("swebench", {"git": "https://x/{owner}"}, "")
def test_options_of_sources(folder: Path, kind: str, options: Any, only: str) -> None:
    write(folder / "o" / "t", {**FILES, "task.toml": b"# nothing\n"})
    (folder / "o" / "rows.jsonl").write_text(json.dumps(OWN) + "\n")
    path = {"harbor": folder / "o", "swebench": folder / "o/rows.jsonl", "family": Path()}[kind]
    name = "off-by-one" if kind == "family" else ""
    source = TaskSource(kind, str(path), name, 1, options=options if isinstance(options, dict) else {}, only=only)
    sources(lambda problems: load_tasks([source], on_problem=problems.append))


def test_an_option_in_another_shape_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ConfigError, match="host_env"):
        load_tasks([TaskSource("harbor", str(folder), options={"host_env": "HOME"})])


DIGEST = f"sha256:{'0' * 64}"
MANIFEST = {
    "schema_version": "1.0", "dataset": {"name": "org/set", "version": "1"},
    "tasks": [{"name": "org/t", "digest": DIGEST}, {"name": "org/u", "digest": DIGEST}],
    "files": [{"path": "task.toml"}],
}  # fmt: skip
REGISTRY = [{"name": "set", "version": "1", "tasks": [{"name": "t", "path": "t"}, {"name": "u", "path": "u"}]}]


@MANY
@given(spoilt(MANIFEST), spoilt(REGISTRY))
@example({}, [{"name": "set", "version": "1", "tasks": [{"name": "t", "path": "\0"}]}])
def test_collections(folder: Path, manifest: Any, registry: Any) -> None:
    write(folder / "c", {f"t/{name}": data for name, data in FILES.items()} | {"t/task.toml": b"# nothing\n"})
    text = document(manifest) if isinstance(manifest, dict) else str(manifest)
    (folder / "c/dataset.toml").write_bytes(text.encode(errors="surrogatepass"))
    (folder / "c/registry.json").write_text(json.dumps(registry))
    harbor(folder / "c")
    harbor(folder / "c/registry.json", name="set")


def test_every_wrong_task_of_a_collection_is_told(folder: Path) -> None:
    write(folder / "d", {f"t/{name}": data for name, data in FILES.items()} | {"t/task.toml": b"# nothing\n"})
    (folder / "d/dataset.toml").write_text(document(MANIFEST | {"files": []}))
    problems: list[LegoError] = []
    assert load_tasks([TaskSource("harbor", str(folder / "d"))], on_problem=problems.append) == []
    assert ["is not the task" in one.message for one in problems] == [True, False]
    assert "org/u is not below" in problems[1].message


def test_one_bad_source_hides_no_other(folder: Path) -> None:
    write(folder / "e" / "t", {**FILES, "task.toml": b"# nothing\n"})
    problems: list[LegoError] = []
    listed = [TaskSource("harbor", str(folder / path)) for path in ("gone", "e", "e", "nor-this")]
    assert [task.id for task in load_tasks(listed, on_problem=problems.append)] == ["t"]
    assert [one.message.split(":")[0] for one in problems] == [
        "no such folder of tasks", "two tasks have the same id", "no such folder of tasks",
    ]  # fmt: skip
