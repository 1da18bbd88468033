"""A user's folder, and the real `lego` command run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lego.rundb.store import Row, Store
from lego.sandbox.podman import Podman
from tests._tiny import tiny_policy

__all__ = ["tiny_policy"]

LEGO = Path(sys.executable).with_name("lego")
DOCKERFILE = "FROM debian:bookworm\nWORKDIR /app\n"
GRADES_ANSWER = '#!/bin/sh\nset -f\nif [ "$(cat /app/answer 2>/dev/null)" = right ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
ANSWERS = "#!/bin/sh\necho right > /app/answer\n"


@dataclass(frozen=True)
class Said:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> list[str]:
        """The error's lines: `lego: …` and its indented hint, which end the command's words."""
        lines = self.err.rstrip("\n").split("\n")
        starts = [number for number, line in enumerate(lines) if line.startswith("lego: ")]
        assert len(starts) == 1, self.err
        error = lines[starts[0] :]
        assert all(line.startswith("      ") for line in error[1:]), self.err
        return error


@dataclass
class Project:
    """The folder of someone who uses lego. `config` is what the next `write` puts into lego.yaml."""

    folder: Path
    policy: str
    config: dict[str, Any] = field(default_factory=dict)

    def task(
        self,
        name: str,
        *,
        solve: str = ANSWERS,
        tests: str = GRADES_ANSWER,
        dockerfile: str = DOCKERFILE,
        toml: str = 'schema_version = "1.4"\n',
        into: str = "tasks",
    ) -> Path:
        """A Harbor task folder; a scripted trial does what `solve` does."""
        folder = self.folder / into / name
        for path, text in {
            "task.toml": toml,
            "instruction.md": f"Write the right answer to /app/answer. ({name})\n",
            "environment/Dockerfile": dockerfile,
            "tests/test.sh": tests,
            "solution/solve.sh": solve,
        }.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        return folder

    def spec(self, name: str, script: str) -> str:
        """A harness that is a shell script; it knows $LEGO_TOKEN and the proxy's socket, as any harness does."""
        path = self.folder / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {
                    "name": name,
                    "dialect": "openai_chat",
                    "run": {"argv": ["/bin/sh", "-c", script], "env": {"LEGO_TOKEN": "{token}"}},
                    "script": {"style": "tool", "tool": "bash", "submit": {"tool": "submit"}},
                }
            )
        )
        return str(path)

    def write(self, sections: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        """Write lego.yaml: a small scripted run over tasks/, less what `sections` say otherwise."""
        config: dict[str, Any] = {
            "run": {"name": "r"},
            "policy": {"model": self.policy, "renderer": "tiny-chatml", "context": 8192},
            "engine": {"kind": "scripted"},
            "tasks": {"train": [{"source": "harbor", "path": "tasks"}]},
            "harness": {"tiny-agent": 1.0},
            "sandbox": {"memory": "96m", "pids": 48, "disk": "32m", "timeout": "30s"},
            "rollout": {
                "tasks_per_round": 0,
                "samples_per_task": 2,
                "concurrency": 2,
                "max_turns": 6,
                "max_output_tokens": 4096,
            },
        }
        for name, section in (sections or {}).items():
            config[name] = section if name in ("harness", "tasks") else {**config.get(name, {}), **section}
        (self.folder / "lego.yaml").write_text(yaml.safe_dump(config))

    def lego(self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 180) -> Said:
        """Run `lego`, not on a terminal."""
        clean = {key: value for key, value in os.environ.items() if key not in ("LEGO_CONFIG", "COLUMNS")}
        clean |= {"OMP_NUM_THREADS": "1", **(env or {})}
        done = subprocess.run(
            [LEGO, *args], cwd=self.folder, env=clean, capture_output=True, text=True, timeout=timeout,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = Said(done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in said.out + said.err, said.err
        return said

    @property
    def database(self) -> Path:
        return self.folder / "runs/r/run.db"

    def rows(self, sql: str) -> list[Row]:
        store = Store.open_read_only(self.database)
        try:
            return store.rows(sql)
        finally:
            store.close()

    def trials(self) -> list[Row]:
        """Every attempt, with its latest verdict's `outcome` and `reward`."""
        return self.rows(
            "SELECT t.*, v.outcome, v.reward FROM trials t LEFT JOIN verdicts v ON v.id ="
            " (SELECT max(id) FROM verdicts WHERE trial_id = t.id) ORDER BY t.id"
        )

    def summary(self, trial: Row) -> dict[str, Any]:
        return dict(json.loads(trial["summary"]))


@pytest.fixture
def project(tmp_path: Path, tiny_policy: Path) -> Project:
    return Project(tmp_path, str(tiny_policy))


@pytest.fixture
def containers(podman: Podman):
    """Lists the containers of this test's own trials, whatever others run in the same store."""

    def left(project: Project) -> list[str]:
        listed = podman.cli("ps", "--all", "--filter", f"label=lego.run={project_run(project)}", "--format", "{{.ID}}")
        return listed.stdout.decode().split()

    return left


def project_run(project: Project) -> str:
    return str(yaml.safe_load((project.folder / "lego.yaml").read_text())["run"]["name"])
