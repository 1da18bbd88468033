import json
import shutil

import pytest
from click.testing import CliRunner

from lego.config.places import configs_dir
from stages.tasks import command


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("last-page", "slug-accents"):
        shutil.copytree(configs_dir() / "tasks" / "basics" / name, tmp_path / "tasks" / name)
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
