"""A user's folder, and the real `lego` command run in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from lego.rundb.store import Row, Store
from tests._tiny import tiny_policy

__all__ = ["tiny_policy"]

LEGO = Path(sys.executable).with_name("lego")
# One image for all: it holds nothing, not even the folder that agents work in.
DOCKERFILE = "FROM debian:bookworm\nWORKDIR /app\n"
RIGHT = "#!/bin/sh\necho right > /app/answer\n"
GRADES = """#!/bin/sh
if [ "$(cat /app/answer)" = right ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""


@dataclass(frozen=True)
class Said:
    """What a command said, how it ended, and the process it was."""

    code: int
    out: str
    err: str
    pid: int

    @property
    def error(self) -> str:
        """The error: one line `lego: …` and its indented hint, the last words of the command."""
        lines = self.err.rstrip("\n").split("\n")
        starts = [number for number, line in enumerate(lines) if line.startswith("lego: ")]
        assert len(starts) == 1, self.err
        assert all(line.startswith("      ") for line in lines[starts[0] + 1 :]), self.err
        return "\n".join(lines[starts[0] :])


@dataclass
class Project:
    """The folder of someone who uses lego; `name` is the run's, which nobody else's containers carry."""

    folder: Path
    policy: str
    name: str = field(default_factory=lambda: f"faults-{uuid.uuid4().hex[:12]}")

    def task(
        self,
        name: str,
        *,
        solve: str = RIGHT,
        tests: str = GRADES,
        dockerfile: str = DOCKERFILE,
        toml: str = 'schema_version = "1.4"\n',
    ) -> Path:
        """A Harbor task folder; a scripted trial does what `solve` does."""
        folder = self.folder / "tasks" / name
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

    def spec(self, name: str, script: str, **sections: Any) -> str:
        """A harness that is a shell script and knows the trial's token, as any harness does."""
        path = self.folder / f"{name}.yaml"
        run = {"argv": ["/bin/sh", "-c", script], "env": {"LEGO_TOKEN": "{token}"}}
        said = {"style": "tool", "tool": "bash", "submit": {"tool": "submit"}}
        spec = {"name": name, "dialect": "openai_chat", "run": run, "script": said, **sections}
        path.write_text(yaml.safe_dump(spec))
        return str(path)

    def write(self, **sections: Mapping[str, Any]) -> None:
        """Write lego.yaml: a small scripted run over tasks/, less what `sections` say otherwise."""
        config: dict[str, Any] = {
            "run": {"name": self.name},
            "policy": {"model": self.policy, "renderer": "tiny-chatml", "context": 8192},
            "engine": {"kind": "scripted"},
            "tasks": {"train": [{"source": "harbor", "path": "tasks"}]},
            "harness": {"tiny-agent": 1.0},
            "sandbox": {"memory": "96m", "pids": 48, "disk": "32m", "timeout": "30s"},
            "rollout": {
                "tasks_per_round": 0,
                "samples_per_task": 2,
                "concurrency": 2,
                "max_output_tokens": 4096,
                "retry_pause": "1ms",
            },
        }
        for name, section in sections.items():
            config[name] = section if name in ("harness", "tasks") else {**config.get(name, {}), **section}
        (self.folder / "lego.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    def lego(self, *args: str, env: Mapping[str, str] | None = None) -> Said:
        """Run `lego`, not on a terminal."""
        clean = {key: value for key, value in os.environ.items() if key not in ("LEGO_CONFIG", "COLUMNS")}
        process = subprocess.Popen(
            [LEGO, *args],
            cwd=self.folder,
            env=clean | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=240)
        finally:
            process.kill()
            process.wait()
        assert "Traceback" not in out + err, err
        return Said(process.returncode, out, err, process.pid)

    @property
    def database(self) -> Path:
        return self.folder / "runs" / self.name / "run.db"

    def rows(self, sql: str, database: Path | None = None) -> list[Row]:
        store = Store.open_read_only(database or self.database)
        try:
            return store.rows(sql)
        finally:
            store.close()

    def trials(self, database: Path | None = None) -> list[Row]:
        """Every attempt, with its latest verdict's `outcome` and `reward`, and `summary` read."""
        rows = self.rows(
            "SELECT t.*, v.outcome, v.reward FROM trials t LEFT JOIN verdicts v ON v.id ="
            " (SELECT max(id) FROM verdicts WHERE trial_id = t.id) ORDER BY t.id",
            database,
        )
        return [{**row, "summary": json.loads(row["summary"])} for row in rows]


@pytest.fixture
def project(tmp_path: Path, tiny_policy: Path) -> Project:
    return Project(tmp_path, str(tiny_policy))
