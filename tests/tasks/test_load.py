import shutil

import pytest

from lego.config.schema import TaskSource, TasksSection
from lego.errors import ConfigError, TaskError
from lego.tasks.load import load_all, load_tasks
from tests.conftest import CONFIGS

BASICS = CONFIGS / "tasks" / "basics"


def harbor(path, **more):
    return TaskSource(source="harbor", path=str(path), **more)


def family(seed, count=30):
    return TaskSource(source="family", name="off-by-one", seed=seed, count=count)


@pytest.fixture
def two(tmp_path):
    for name in ("last-page", "slug-accents"):
        shutil.copytree(BASICS / name, tmp_path / name)
    return tmp_path


def test_sources_in_order(two):
    tasks = load_tasks([family(3, 2), harbor(two)])
    assert [task.id for task in tasks] == ["off-by-one-3-0000", "off-by-one-3-0001", "last-page", "slug-accents"]


def test_a_source_s_harness_is_its_tasks_own_and_no_part_of_what_they_are(two):
    drawn, named = load_tasks([harbor(two)]), load_tasks([harbor(two, harness="codex")])
    assert [task.harness for task in (*drawn, *named)] == ["", "", "codex", "codex"]
    assert [task.digest for task in drawn] == [task.digest for task in named]


def test_count(two):
    assert [task.id for task in load_tasks([harbor(two, count=1)])] == ["last-page"]


def test_train_and_eval_share_nothing():
    train, held_out = load_all(TasksSection([family(1)], [family(2)]))
    assert len(train) == len(held_out) == 30
    assert not {task.digest for task in train} & {task.digest for task in held_out}


def test_same_seed_in_both_has_the_same_ids(two):
    with pytest.raises(TaskError, match="same id"):
        load_all(TasksSection([family(1)], [family(1)]))


def test_a_folder_in_both_is_refused(two):
    with pytest.raises(TaskError, match="same id.*last-page.*last-page"):
        load_all(TasksSection([harbor(two)], [harbor(two)]))


def test_a_copy_under_another_name_is_refused(two):
    shutil.copytree(two / "last-page", two / "copy")
    with pytest.raises(TaskError, match="same content"):
        load_tasks([harbor(two)])


def test_broken_folders(two):
    (two / "last-page" / "tests" / "test.sh").unlink()
    with pytest.raises(TaskError, match="last-page"):
        load_tasks([harbor(two)])
    problems = []
    tasks = load_tasks([harbor(two)], on_problem=problems.append)
    assert [task.id for task in tasks] == ["slug-accents"]
    assert len(problems) == 1 and "test.sh" in problems[0].message


def test_options(two, monkeypatch):
    toml = two / "last-page" / "task.toml"
    toml.write_text(toml.read_text().replace("no-network", "public") + '[environment.env]\nA = "${LEGO_TEST_A}"\n')
    monkeypatch.setenv("LEGO_TEST_A", "1")
    with pytest.raises(TaskError):
        load_tasks([harbor(two, options={"network": "sealed"})])
    first = load_tasks([harbor(two, options={"network": "sealed", "host_env": ["LEGO_TEST_A"]})])[0]
    assert first.environment.env == {"A": "1"}


@pytest.mark.parametrize(
    "source",
    [
        TaskSource(source="swarm"),
        TaskSource(source="harbor"),
        harbor(BASICS, options={"netwrk": "sealed"}),
        harbor(BASICS, options={"network": "open"}),
    ],
)
def test_wrong_sources(source):
    with pytest.raises(ConfigError):
        load_tasks([source])
