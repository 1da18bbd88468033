"""Runs of the real command `lego`, as processes that can be watched through their database and killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lego.rundb import calls
from lego.rundb.store import Row, Store
from lego.sandbox.podman import Podman
from lego.sandbox.reaper import RUN, Owner

ROOT = Path(__file__).parents[2]
PATIENCE = 240.0
"""Seconds after which something that was waited for is taken never to come."""


def until(condition: Callable[[], Any], what: str, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Wait until `condition()` is true; False where `process` ended first."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            return bool(condition())
        assert time.monotonic() < deadline, f"waited for this in vain: {what}"
        time.sleep(0.01)
    return True


@dataclass
class RunOf:
    """One run: its config, its folder, and every process that worked on it. `pids` are all of them so far."""

    folder: Path
    name: str
    config: dict[str, Any]
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = {**self.config, "run": {"seed": 3, "name": self.name, "dir": str(self.folder)}}
        self.file.write_text(yaml.safe_dump(self.config))

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def log(self) -> Path:
        """What all its processes printed."""
        return self.folder / f"{self.name}.log"

    @property
    def db(self) -> Path:
        return self.folder / self.name / "run.db"

    @property
    def policies(self) -> Path:
        return self.folder / self.name / "policies"

    def start(self, command: str, *more: str) -> subprocess.Popen[bytes]:
        script = Path(sysconfig.get_path("scripts")) / "lego"
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [script, command, "-c", self.file, *more],
                cwd=ROOT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pids.append(process.pid)
        return process

    @contextmanager
    def started(self, command: str, *more: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process that does not outlive the block."""
        process = self.start(command, *more)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def lego(self, command: str, *more: str, code: int = 0) -> None:
        """Run to the end, and expect that exit code."""
        with self.started(command, *more) as process:
            self.ended(process, code)

    def ended(self, process: subprocess.Popen[bytes], code: int) -> None:
        assert process.wait(PATIENCE) == code, self.said()

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """What a look at the database gives; nothing while there is none yet."""
        try:
            with closing(sqlite3.connect(f"file:{self.db}?mode=ro", uri=True, timeout=30)) as connection:
                return connection.execute(sql, params).fetchall()
        except sqlite3.OperationalError as error:
            if "unable to open" in str(error) or "no such table" in str(error):
                return []
            raise

    def count(self, sql: str, *params: Any) -> int:
        found = self.rows(f"SELECT count(*) FROM {sql}", *params)
        return int(found[0][0]) if found else 0

    def held_by(self, process: subprocess.Popen[bytes], column: str = "lease_owner") -> list[int]:
        """The trials that a process holds (to run, or in `verify_owner` to verify)."""
        return [row[0] for row in self.rows(f"SELECT id FROM trials WHERE {column} LIKE ?", f"%/{process.pid}/%")]

    @contextmanager
    def store(self) -> Iterator[Store]:
        with closing(Store.open_read_only(self.db)) as opened:
            yield opened


def interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def slots(run: RunOf) -> dict[tuple[Any, ...], list[Row]]:
    """(kind, round, task, harness, sample) -> its attempts in order."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    with run.store() as store:
        for row in store.rows(
            "SELECT r.kind, r.ordinal, t.* FROM trials t JOIN rounds r ON r.id = t.round_id ORDER BY t.attempt"
        ):
            slot = (row["kind"], row["ordinal"], row["task_id"], row["harness"], row["sample"])
            found.setdefault(slot, []).append(row)
    return found


def outcome_of(run: RunOf) -> dict[str, Any]:
    """Everything that a run with scripted trials decides, and nothing that only time or luck does."""
    with run.store() as store:
        rounds = {
            (row["kind"], row["ordinal"]): (row["policy_version"], row["settings"], row["status"], row["reason"])
            for row in store.rows("SELECT * FROM rounds")
        }
        tasks = store.rows(
            "SELECT r.kind, r.ordinal, p.position, p.task_id, p.harness FROM round_tasks p"
            " JOIN rounds r ON r.id = p.round_id ORDER BY r.kind, r.ordinal, p.position"
        )
        steps = store.rows(
            "SELECT r.kind, r.ordinal, s.step, s.kind AS how, s.status, s.reason, s.policy_from, s.policy_to"
            " FROM train_steps s JOIN rounds r ON r.id = s.round_id ORDER BY s.step"
        )
        evals = store.rows(
            "SELECT r.ordinal, e.policy_version, n, passed, rate, low, high, detail FROM evals e"
            " JOIN rounds r ON r.id = e.round_id ORDER BY r.ordinal"
        )
        samples = store.rows(
            "SELECT s.step, t.task_id, t.sample, s.segment, s.advantage, s.weight, s.tokens, s.dropped FROM samples s"
            " JOIN trials t ON t.id = s.trial_id ORDER BY s.step, t.task_id, t.sample, s.segment"
        )
        trials = {slot: _decided(store, attempts[-1]) for slot, attempts in slots(run).items()}
    return {"rounds": rounds, "tasks": tasks, "steps": steps, "evals": evals, "samples": samples, "trials": trials}


def _decided(store: Store, trial: Row) -> dict[str, Any]:
    verdicts = store.rows("SELECT outcome, reward, tamper FROM verdicts WHERE trial_id = ? ORDER BY id", (trial["id"],))
    said = ("seq", "parent_seq", "shared", "kind", "sampler", "policy_version", "finish", "fate", "status")
    return {
        **{name: trial[name] for name in ("status", "fault", "ending", "exit_code", "submission_digest")},
        "verdict": verdicts[-1:],
        "calls": [
            (
                *(call[name] for name in said),
                call["added_prompt_ids"].tolist(),
                call["completion_ids"].tolist(),
            )
            for call in calls.of_trial(store, trial["id"])
        ],
    }


def left_behind(podman: Podman, run: RunOf) -> list[str]:
    """Containers of the run; socket folders, service sockets and podman services of its processes."""
    query = {"all": "true", "filters": f'{{"label": ["{RUN}={run.name}"]}}'}
    containers = [row["Id"] for row in podman.request("get", "/containers/json", params=query).json() or []]
    owners = {folder: Owner.parse(folder.name.rpartition("-")[0]) for folder in podman.paths.sockets.iterdir()}
    folders = [str(folder) for folder, owner in owners.items() if owner and owner.pid in run.pids]
    prefixes = tuple(str(podman.paths.run / f"api-{pid}-") for pid in run.pids)
    sockets = [str(path) for path in podman.paths.run.glob("api-*.sock") if str(path).startswith(prefixes)]
    services = [words for words in command_lines() if words[-1].removeprefix("unix://").startswith(prefixes)]
    return containers + folders + sockets + [" ".join(words) for words in services]


def command_lines() -> Iterator[list[str]]:
    """Of every process on this machine."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            yield file.read_text(errors="replace").rstrip("\0").split("\0")


def check_database(run: RunOf) -> None:
    assert run.rows("PRAGMA integrity_check") == [("ok",)]
    assert run.rows("PRAGMA foreign_key_check") == []


def check_attempts(run: RunOf) -> int:
    """Each slot has one finished attempt, its last; the earlier ones were lost with their worker and left no verdict,
    no submission and no sample. Returns how many were lost."""
    lost = 0
    for slot, attempts in slots(run).items():
        assert [row["attempt"] for row in attempts] == list(range(1, len(attempts) + 1)), slot
        assert [row["status"] for row in attempts] == ["failed"] * (len(attempts) - 1) + ["finished"], slot
        assert all(row["lease_owner"] is None and row["verify_owner"] is None for row in attempts)
        for row in attempts[:-1]:
            lost += 1
            assert (row["fault"], row["ending"], row["submission"]) == ("infra", "lease", None), slot
            assert run.count("verdicts WHERE trial_id = ?", row["id"]) == 0
            assert run.count("samples WHERE trial_id = ?", row["id"]) == 0
    return lost
