"""Projects: where they come from, how they are laid out, what their image is made of."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest

from lego.errors import TaskError
from lego.inject import layout, recipe, source
from lego.inject.source import Project
from lego.tasks import overlay
from lego.tasks.task import File


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
