"""What a machine may lack: podman, a working container runtime, disk, the right version of lego."""

import os
import shutil
import sqlite3
import subprocess

import pytest


@pytest.fixture
def without_podman(tmp_path):
    empty = tmp_path / "bin"
    empty.mkdir()
    return {"PATH": str(empty)}


def test_no_podman(project, without_podman):
    project.task("good")
    project.write()
    for command in ("build-images", "rollout", "verify"):
        result = project.lego(command, env=without_podman)
        assert result.code == 3 and result.out == ""
        assert "podman is not installed" in result.error and "apt install podman" in result.error
    checked = project.lego("check", "--only", "sandbox", env=without_podman)
    assert checked.code == 4 and "✗ sandbox" in checked.out and "podman is not installed" in checked.out
    assert project.trials() == []


@pytest.mark.podman
def test_podman_that_cannot_start_containers(project, podman):
    project.task("good")
    runtime = project.folder / "broken-runtime"
    runtime.write_text("#!/bin/sh\necho 'this kernel refuses namespaces' >&2\nexit 1\n")
    runtime.chmod(0o755)
    project.write(sandbox={"runtime": str(runtime), "store": str(project.folder / "store")})
    result = project.lego("rollout")
    assert result.code == 3 and "podman cannot start a container" in result.error
    assert "broken-runtime: this kernel refuses namespaces" in result.error
    assert "another sandbox.runtime" in result.error
    checked = project.lego("check", "--only", "sandbox")
    assert checked.code == 4 and "this kernel refuses namespaces" in checked.out
    assert project.trials() == []


def test_a_database_of_a_newer_lego(project, without_podman):
    project.task("good")
    project.write()
    project.lego("rollout", env=without_podman)  # begins the run, and no more
    with sqlite3.connect(project.database) as db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('lego', 'm999_x', '2030')")
    db.close()
    before = project.database.read_bytes()
    for command in (("status",), ("show", "1"), ("rollout",), ("train",)):
        result = project.lego(*command)
        assert result.code == 2
        assert "was written by a newer lego (it has m999_x)" in result.error and "upgrade lego" in result.error
    assert project.database.read_bytes() == before


def test_a_file_that_is_no_database(project):
    project.task("good")
    project.write()
    project.database.parent.mkdir(parents=True)
    project.database.write_text("lego\n" * 100)
    for command in ("status", "rollout"):
        result = project.lego(command)
        assert result.code == 2 and "is not a run database" in result.error
    assert project.database.read_text() == "lego\n" * 100


def test_a_config_changed_between_stages(project, without_podman):
    project.task("good")
    project.write()
    assert project.lego("rollout", env=without_podman).code == 3
    frozen = project.lego("rollout", "run.seed=4", "sandbox.memory=64m", env=without_podman)
    assert frozen.code == 2 and "run.seed: 0 -> 4" in frozen.error and 'sandbox.memory: "96m" -> "64m"' in frozen.error
    assert "run.name" in frozen.error
    tuned = project.lego("rollout", "rollout.max_turns=9", "rollout.concurrency=1", env=without_podman)
    assert tuned.code == 3
    logged = [row["text"] for row in project.rows("SELECT text FROM events WHERE kind = 'config'")]
    assert logged == ["rollout.max_turns: 20 -> 9"]
    (project.folder / "tasks/good/instruction.md").write_text("Something else.\n")
    changed = project.lego("rollout", "rollout.max_turns=9", env=without_podman)
    assert changed.code == 2 and "tasks changed since this run began: good" in changed.error


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder, leave: int = 0) -> None:
    (folder / "fill").unlink(missing_ok=True)
    with (folder / "fill").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(shutil.disk_usage(folder).free - leave, 1))


@pytest.mark.parametrize("killed", [False, True])
def test_looking_at_a_run_takes_no_room(project, without_podman, small_disk, killed):
    project.task("good")
    project.write(run={"dir": str(small_disk)})
    project.lego("rollout", env=without_podman)  # begins the run, and no more
    database = small_disk / project.name / "run.db"
    if killed:  # what it leaves: the file and its log, without the index that processes share
        writer = sqlite3.connect(database, isolation_level=None)
        writer.execute("INSERT INTO events (at, kind, text) VALUES (1, 'fault', 'the last thing that was written')")
        left = {path: path.read_bytes() for path in (database, database.with_name("run.db-wal"))}
        writer.close()
        for path, data in left.items():
            path.write_bytes(data)
    fill(small_disk)
    status = project.lego("status")
    assert status.code == 0 and "nothing looks wrong" in status.out, (status.out, status.err)
    assert project.lego("show", "last").code == 2
    if killed:
        assert project.rows("SELECT text FROM events WHERE kind = 'fault'", database) != []


@pytest.mark.podman
def test_a_full_disk(project, podman, small_disk):
    for name in ("one", "two"):
        project.task(name)
    project.write(run={"dir": str(small_disk)}, rollout={"samples_per_task": 3, "max_attempts": 5})
    database = small_disk / project.name / "run.db"

    def full(result) -> bool:
        assert result.code == 3, result.err
        return "free some" in result.error and str(small_disk) in result.error

    fill(small_disk)
    assert full(project.lego("rollout"))
    (small_disk / "fill").unlink()
    assert project.lego("build-images").code == 0
    fill(small_disk, leave=250_000)
    assert full(project.lego("rollout"))  # fills up between one trial and the next
    (small_disk / "fill").unlink()
    assert project.lego("rollout").code == 0
    assert project.lego("verify").code == 0
    finished = [trial for trial in project.trials(database) if trial["status"] == "finished"]
    slots = {(trial["task_id"], trial["sample"]) for trial in finished}
    assert len(finished) == len(slots) == 6 and all(trial["reward"] == 1 for trial in finished)
