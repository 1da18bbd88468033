"""Projects: where they come from, how they are laid out, what their image is made of."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.errors import TaskError
from lego.inject import layout, recipe, source
from lego.inject.baseline import Baseline
from lego.inject.edits import Mutation
from lego.inject.folder import Injected, Writer
from lego.inject.source import Project
from lego.inject.state import State
from lego.tasks import harbor, overlay
from lego.tasks.task import File
from tests._toml import document


def sdist(folder, name="pkg-1.0", files=(("src/pkg/__init__.py", b"x = 1\n"),)):
    path = folder / f"{name}.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for file, data in (*files, ("PKG-INFO", b"Name: pkg\nSummary: A thing.\n"), ("pkg.egg-info/x", b"")):
            info = tarfile.TarInfo(f"{name}/{file}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def pip_that_says(monkeypatch, text, made=None):
    def run(command, **_):
        if made:
            made(command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0 if made else 1, "", text)

    monkeypatch.setattr(source.subprocess, "run", run)


def test_an_sdist_is_downloaded_once(tmp_path, monkeypatch):
    pip_that_says(monkeypatch, "", lambda folder: sdist(source.Path(folder)))
    first = source.fetch("Pkg==1.0", tmp_path / "cache")
    pip_that_says(monkeypatch, "ERROR: asked again")
    assert source.fetch("pkg==1.0", tmp_path / "cache").tree == first.tree
    assert list(first.tree) == ["PKG-INFO", "src/pkg/__init__.py"]
    assert (first.name, first.version, first.summary, len(first.sha256)) == ("pkg", "1.0", "A thing.", 64)


@pytest.mark.parametrize(
    ("said", "fault", "told"),
    [
        ("ERROR: No matching distribution found for pkg==1.0", "user", "no sdist of it"),
        ("WARNING: NewConnectionError\nERROR: No matching distribution found", "infra", "cannot be reached"),
        ("ERROR: Failed to build 'pkg'", "user", "could not download it: Failed to build 'pkg'"),
    ],
)
def test_what_pip_says_becomes_one_clear_error(tmp_path, monkeypatch, said, fault, told):
    pip_that_says(monkeypatch, said)
    with pytest.raises(TaskError, match=told) as error:
        source.fetch("pkg==1.0", tmp_path)
    assert error.value.fault == fault


def test_neither_folder_nor_pinned_package(tmp_path):
    with pytest.raises(TaskError, match="neither a folder nor a package with its version") as error:
        source.fetch("pkg", tmp_path)
    assert "PACKAGE==VERSION" in error.value.hint


def test_a_folder_without_what_is_not_source(tmp_path):
    for name in ("pkg/a.py", "pkg/__pycache__/a.pyc", ".git/HEAD", "build/x", "tests/test_a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "My_Pkg"\nversion = "3"\n')
    project = source.from_folder(tmp_path)
    assert list(project.tree) == ["pkg/a.py", "pyproject.toml", "tests/test_a.py"]
    assert (project.name, project.version) == ("my-pkg", "3")
    (tmp_path / "pkg/a.py").write_text("x = 2\n")
    assert source.from_folder(tmp_path).sha256 != project.sha256


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("My Project", "my-project"), ("Café_au.lait", "cafe-au-lait"), ("a" * 150, "a" * 100), ("--x--", "x"),
        ("Проект", "project-f45edf00"), ("...", "project-ab5df625"), ("x\x7f\"", "x"),
    ],
)  # fmt: skip
def test_a_name_of_any_kind_gives_tasks_that_load(tmp_path, written, name):
    folder = tmp_path / written
    (folder / "tests").mkdir(parents=True)
    (folder / "tests/test_a.py").write_text("def test_a():\n    assert True\n")
    (folder / 'odd "name".py').write_text("x = 1\n")
    project = source.from_folder(folder)
    assert project.name == name
    state, mutation = State(tmp_path / "state", 1, "key"), Mutation('odd "name".py', 0, 5, b"x = 2", "k", (1, 1), "f")
    writer = Writer(state, project, layout.read(project), Baseline(("a",), {}, {}, 1.0, {}, ()), "FROM a AS package\n")
    bug = Injected(f"{project.name}-12345678", mutation, "Fix.\n", ("t.py::a",), (), b"x = 2\n", {}, b"")
    (tmp_path / "out").mkdir()
    writer.write(bug, tmp_path / "out")
    assert harbor.load(tmp_path / "out" / bug.id).metadata["package"] == name


@pytest.mark.parametrize("version", ["../../elsewhere", "1 2/3", "", "é", "v" * 300])
def test_a_version_of_any_kind_is_a_folders_name(tmp_path, version):
    (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'a'\nversion = '{version}'\n")
    found = source.from_folder(tmp_path).version
    assert found and not set(found) & set("/ ") and found.strip(".") and len(found) <= 100


def test_a_file_that_cannot_be_named_or_read_is_told_in_one_line(tmp_path):
    odd = os.fsdecode(bytes(tmp_path) + b"/b\xff.py")
    Path(odd).write_text("")
    with pytest.raises(TaskError, match="no plain text.*") as caught:
        source.from_folder(tmp_path)
    caught.value.message.encode()
    assert caught.value.fault == "user" and "rename" in caught.value.hint


@settings(max_examples=60)
@given(st.recursive(st.none() | st.integers() | st.text("ab['\n"), lambda inner: st.lists(inner) | st.dictionaries(
    st.sampled_from(["tool", "pytest", "ini_options", "addopts", "project", "optional-dependencies", "tests", "name"]),
    inner,
)))  # fmt: skip
def test_whatever_a_projects_settings_hold_its_layout_is_read(value):
    text = document(value) if isinstance(value, dict) else "x = ["
    tree = {"pyproject.toml": File(text.encode()), "tox.ini": File(text.encode()), "test_a.py": File(b"")}
    assert layout.read(Project("a", "1", tree, "", "")).tests == ("test_a.py",)


def test_settings_are_read_from_where_pytest_looks_first():
    files = {"pytest.toml": b"[pytest]\npython_files = ['check_*.py']\n", "pytest.ini": b"[pytest]\nmarkers = a\n"}
    tree = {name: File(data) for name, data in files.items()} | {"check_x.py": File(b"def test(): pass\n")}
    found = layout.read(Project("pkg", "1", tree, "", ""))
    assert found.tests == ("check_x.py",) and "python_files = check_*.py" in found.settings


def test_layout():
    tree = {
        name: File(b"")
        for name in (
            "pkg/a.py", "pkg/tests/test_a.py", "pkg/tests/data.txt", "setup.py", "docs/conf.py", "conftest.py",
            "test_top.py", "docs/test_docs.py",
        )
    }  # fmt: skip
    found = layout.read(Project("pkg", "1", tree, "", ""), ("extra",))
    assert found.tests == ("pkg/tests/test_a.py", "test_top.py")
    assert set(found.suite) == {*found.tests, "pkg/tests/data.txt", "conftest.py"}
    assert found.sources == ("pkg/a.py",) and found.installable and found.requirements == ("extra",)


def test_settings_that_decide_are_kept_and_the_rest_is_not():
    text = """
[project]
name = "pkg"
[dependency-groups]
tests = ["pytest", "freezegun>=1", "pytest-cov"]
[tool.pytest.ini_options]
addopts = "-m 'not slow' --cov=pkg -p evil --import-mode=importlib"
filterwarnings = ["error", "ignore::X"]
testpaths = ["t"]
"""
    found = layout.read(Project("pkg", "1", {"pyproject.toml": File(text.encode())}, "", ""))
    assert found.settings == (
        "[pytest]\nfilterwarnings =\n    error\n    ignore::X\naddopts = -m 'not slow' --import-mode=importlib\n"
    )
    assert found.requirements == ("freezegun>=1",)


def test_the_image_is_the_same_for_every_task_and_holds_no_source():
    project = Project("pkg", "1", {"pkg/a.py": File(b"x = 1\n")}, "", "")
    text = recipe.dockerfile(layout.read(project), {"pytest": "9"})
    context = {
        "Dockerfile": File(text.encode()),
        recipe.REPO_TAR: File(recipe.pack(project.tree)),
        "bug/pkg/a.py": File(b"x = 2\n"),
    }
    kept, laid = overlay.split(context, recipe.STAGE, [recipe.REPO_TAR, recipe.BUG], "/app")
    assert kept == recipe.environment(text, project).context
    assert laid == {"/app/pkg/a.py": File(b"x = 2\n")}
    assert recipe.pack(project.tree) == recipe.pack(dict(project.tree))


@pytest.mark.parametrize(
    ("stage", "over", "told"), [("other", ["bug"], "no stage 'other'"), ("package", ["gone"], "holds no 'gone'")]
)
def test_an_overlay_that_does_not_fit_is_refused(stage, over, told):
    context = {"Dockerfile": File(b"FROM a AS package\nFROM package\n"), "bug/x": File(b"")}
    with pytest.raises(ValueError, match=told):
        overlay.split(context, stage, over, "/app")
