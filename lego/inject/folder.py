"""Writing a task as a Harbor folder: everything that a project's tasks share is one file on disk, hard-linked."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lego.inject import recipe
from lego.inject.baseline import Baseline
from lego.inject.edits import Mutation
from lego.inject.layout import Layout
from lego.inject.source import Project
from lego.inject.state import State
from lego.tasks.task import DEFAULT_PROTECTED

GRADED_TEST_LIMIT = 20.0
"""Seconds of CPU that one test may take when a submission is graded."""
_USER = 65534

_TEST_SH = f"""\
#!/bin/sh
# grade.py runs the hidden tests as another user and writes the reward itself.
exec {recipe.PYTHON} -I -B /tests/grade.py --app {recipe.APP} --out /logs/verifier --user {_USER}
"""
_SOLVE_SH = """\
#!/bin/sh
set -e
cd "${APP:-/app}"
git apply --whitespace=nowarn - <<'PATCH'
"""


@dataclass(frozen=True)
class Injected:
    """A kept bug: what is changed, what that breaks, what is left of the tests that show it, and the way back.

    `visible`: test files of the agent's repository that differ from the project's, by path. `patch` repairs the bug.
    """

    id: str
    mutation: Mutation
    instruction: str
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    mutated: bytes
    visible: Mapping[str, bytes]
    patch: bytes


def solve_script(patch: bytes) -> bytes:
    """The oracle: applies the patch in $APP, by default the task's repository."""
    return _SOLVE_SH.encode() + patch + b"PATCH\n"


class Writer:
    """Writes the tasks of one project."""

    def __init__(self, state: State, project: Project, layout: Layout, baseline: Baseline, dockerfile: str) -> None:
        self._state, self._project, self._layout, self._baseline = state, project, layout, baseline
        inside = resources.files("lego.inject.inside")
        settings = {"pytest_ini": layout.settings, "plugins": list(baseline.plugins), "test_limit": GRADED_TEST_LIMIT}
        shared = {
            "environment/Dockerfile": dockerfile.encode(),
            f"environment/{recipe.REPO_TAR}": recipe.pack(project.tree),
            "tests/suite.tar": recipe.pack(project.tree, layout.suite),
            "tests/settings.json": json.dumps(settings, indent=1).encode(),
            "tests/test.sh": _TEST_SH.encode(),
            "tests/grade.py": inside.joinpath("grade.py").read_bytes(),
            "tests/run_tests.py": inside.joinpath("run_tests.py").read_bytes(),
        }
        self._shared = {name: state.write(name.replace("/", "-"), data) for name, data in shared.items()}
        self._shared["tests/test.sh"].chmod(0o755)

    def write(self, task: Injected, out: Path) -> None:
        """Make the task's folder in `out`, whole or not at all; what stands there under its name is replaced."""
        aside = self._state.folder / f"making-{task.id}"
        shutil.rmtree(aside, ignore_errors=True)
        names = {"fail_to_pass": task.fail_to_pass, "pass_to_pass": task.pass_to_pass, "limit": self._limit()}
        files: dict[str, bytes] = {
            "task.toml": self._toml(task).encode(),
            "instruction.md": task.instruction.encode(),
            f"environment/{recipe.BUG}/{task.mutation.path}": task.mutated,
            "tests/names.json": json.dumps(names, indent=0).encode(),
            "solution/solve.sh": solve_script(task.patch),
        }
        files |= {f"environment/{recipe.BUG}/{path}": data for path, data in task.visible.items()}
        for name, data in files.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (aside / "solution/solve.sh").chmod(0o755)
        for name, source in self._shared.items():
            path = aside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _link(source, path)
        out.mkdir(parents=True, exist_ok=True)
        target = out / task.id
        shutil.rmtree(target, ignore_errors=True)
        aside.rename(target)

    def _limit(self) -> float:
        """Seconds for all of a task's tests. By their number, so that it is the same wherever the task is made; where
        what was measured asks for more, so many times as much."""
        limit = 60.0 + len(self._baseline.stable) // 10
        while limit < 8 * self._baseline.seconds:
            limit *= 2
        return limit

    def _toml(self, task: Injected) -> str:
        project, limit = self._project, self._limit()
        protected = [*DEFAULT_PROTECTED, *(f"/{path}" for path in self._layout.suite if "/" not in path)]
        return "\n".join(
            (
                'schema_version = "1.4"',
                "",
                "[task]",
                f"name = {_quoted(f'lego/{task.id}')}",
                f"description = {_quoted(f'A bug put into {project.name} {project.version}')}",
                "",
                "[metadata]",
                f"package = {_quoted(project.name)}",
                f"version = {_quoted(project.version)}",
                f"source = {_quoted(project.origin)}",
                f"source_sha256 = {_quoted(project.sha256)}",
                f"bug = {_quoted(task.mutation.kind)}",
                f"fail_to_pass = {len(task.fail_to_pass)}",
                f"pass_to_pass = {len(task.pass_to_pass)}",
                "",
                "# All tasks of the package are one image: this stage of the Dockerfile, and these laid over it.",
                "[metadata.lego]",
                f"stage = {_quoted(recipe.STAGE)}",
                f"over = {_array([recipe.REPO_TAR, recipe.BUG])}",
                f"roots = {_array([recipe.APP])}",
                f"protected = {_array(protected)}",
                "",
                "[agent]",
                "timeout_sec = 900",
                "",
                "[verifier]",
                f"timeout_sec = {limit + 60:.0f}",
                "",
                "[environment]",
                'network_mode = "no-network"',
                f"workdir = {_quoted(recipe.APP)}",
                "",
            )
        )


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _quoted(text: str) -> str:
    """A TOML string: JSON's, but for the one control character that only TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _array(texts: Sequence[str]) -> str:
    return f"[{', '.join(map(_quoted, texts))}]"
