import json
import shutil

import pytest
from click.testing import CliRunner

from lego.config.load import load
from lego.errors import ConfigError, GateError
from lego.rollout.run import open_run
from lego.rundb import catalogue, rounds, trials
from stages.tasks import command
from tests.conftest import CONFIGS
from tests.run_fixture import finish, verdict


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("last-page", "slug-accents"):
        shutil.copytree(CONFIGS / "tasks" / "basics" / name, tmp_path / "tasks" / name)
    path = tmp_path / "run.yaml"
    path.write_text(
        "run: {name: t}\npolicy: {model: tiny}\n"
        "tasks:\n  train: [{source: harbor, path: tasks}]\n"
        "  eval: [{source: family, name: off-by-one, count: 2, seed: 2}]\n"
    )
    return path


def run(*words):
    return CliRunner().invoke(command, [str(word) for word in words])


def test_ls(config):
    lines = run("ls", "-c", config).stdout.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["last-page", "train", "oracle"],
        ["slug-accents", "train", "oracle"],
        ["off-by-one-2-0000", "eval", "oracle"],
        ["off-by-one-2-0001", "eval", "oracle"],
    ]


def test_ls_json(config):
    rows = json.loads(run("ls", "-c", config, "--json").stdout)
    assert [row["id"] for row in rows][:2] == ["last-page", "slug-accents"]
    assert all(len(row["digest"]) == 64 for row in rows)


def test_validate_sound(config):
    result = run("validate", "-c", config)
    assert (result.exit_code, result.stdout) == (0, "4 tasks loaded, 0 errors, 0 warnings\n")


def test_validate_names_every_broken_task(config, tmp_path):
    (tmp_path / "tasks/last-page/tests/test.sh").unlink()
    (tmp_path / "tasks/slug-accents/task.toml").write_text("[environment]\ngpus = 1\n")
    result = run("validate", "-c", config)
    assert result.exit_code == 1
    assert "test.sh" in result.stdout and "environment.gpus" in result.stdout
    assert "2 tasks loaded, 2 errors, 0 warnings" in result.stdout


def test_validate_json_and_warnings(config, tmp_path):
    shutil.rmtree(tmp_path / "tasks/last-page/solution")
    result = run("validate", "-c", config, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["errors"] == []
    assert list(found["warnings"]) == ["last-page"]


@pytest.fixture
def tried(config):
    """A run in which one task was solved always, one sometimes, one never, and one had no graded trial."""
    settings = {"sampler": "policy", "samples": 2}
    rewards = {"last-page": (1.0, 1.0), "slug-accents": (0.0, 1.0), "off-by-one-2-0000": (0.0, 0.0)}
    store = open_run(load(str(config), ())).store
    catalogue.add_policy(store, parent=None, path="p", digest="d", made_by="start")
    for kind, sampler in (("train", "policy"), ("demo", "script")):
        named = [(task, "tiny-agent") for task in rewards]
        round_ = rounds.open_round(
            store, kind, ordinal=1, policy_version=0, tasks=named, samples=2, settings={**settings, "sampler": sampler}
        )
        while (trial := trials.claim(store, round_.id)) is not None:
            finish(store, trial)
            reward = rewards[trial.task_id][trial.sample] if sampler == "policy" else 1.0
            verdict(store, trial.id, reward)
    store.close()
    return config


def test_filter_keeps_what_is_solved_sometimes(tried, tmp_path):
    result = run("filter", "-c", tried, "--out", tmp_path / "kept.txt")
    assert (result.exit_code, result.stdout) == (0, "1 of 4 tasks kept (1 too easy, 1 kept, 1 too hard, 1 untried)\n")
    assert (tmp_path / "kept.txt").read_text().splitlines()[1:] == ["slug-accents  # 1 of 2"]
    text = tried.read_text().replace("path: tasks}", "path: tasks, only: kept.txt}")
    (tmp_path / "next.yaml").write_text(text)
    lines = run("ls", "-c", tmp_path / "next.yaml").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["slug-accents", "off-by-one-2-0000", "off-by-one-2-0001"]


def test_filter_by_other_bounds(tried, tmp_path):
    out = tmp_path / "kept.txt"
    rows = json.loads(run("filter", "-c", tried, "--out", out, "--above", "0.5", "--json").stdout)
    assert {row["id"]: row["why"] for row in rows}["slug-accents"] == "too hard"
    result = run("filter", "-c", tried, "--out", tmp_path / "none.txt", "--min-trials", "3")
    assert result.exit_code == 1 and not (tmp_path / "none.txt").exists()


def test_filter_without_a_run(config, tmp_path):
    result = run("filter", "-c", config, "--out", tmp_path / "kept.txt")
    assert isinstance(result.exception, ConfigError) and "there is no run t yet" in result.exception.message


def test_a_list_that_names_nothing_here(config, tmp_path):
    (tmp_path / "kept.txt").write_text("# nothing\nother-task\n")
    config.write_text(config.read_text().replace("path: tasks}", "path: tasks, only: kept.txt}"))
    error = run("ls", "-c", config).exception
    assert isinstance(error, ConfigError) and "names no task of tasks" in error.message


@pytest.mark.podman
def test_validate_in_sandboxes(config, podman):
    config.write_text(config.read_text().replace("count: 2, seed: 2", "count: 1, seed: 2"))
    (config.parent / "tasks/last-page/solution/solve.sh").write_text("#!/bin/sh\ntrue\n")
    result = run("validate", "-c", config, "--sandbox")
    assert isinstance(result.exception, GateError)
    assert "last-page: nothing done: failed, failed; solution: failed, failed" in result.stdout
    assert "2 of 3 tasks pass with the solution and fail with nothing done, twice" in result.stdout
