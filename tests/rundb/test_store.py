from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lego.errors import ConfigError, StoreError
from lego.rundb import catalogue, meta
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store, _refuse_network_filesystem


def test_commands_that_begin_one_run_at_the_same_moment_all_open_it(tmp_path: Path) -> None:
    """Over and over, for they meet in the middle of it only now and then."""
    failed: list[Exception] = []

    def begin(path: Path, barrier: threading.Barrier) -> None:
        barrier.wait()
        try:
            store = Store.open(path)
            assert store.value("PRAGMA journal_mode") == "wal" and store.value("PRAGMA auto_vacuum") == 2
            store.close()
        except Exception as error:
            failed.append(error)

    for number in range(100):
        barrier = threading.Barrier(6)
        threads = [threading.Thread(target=begin, args=(tmp_path / f"{number}.db", barrier)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []


def test_a_database_from_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    store = Store.open(path)
    store.insert("_sqlite_migrations", {"migration_set": "lego", "name": "m999_future", "applied_at": "2030"})
    store.close()
    with pytest.raises(StoreError, match="newer lego .*m999_future"):
        Store.open(path)
    with pytest.raises(StoreError, match="newer lego"):
        Store.open_read_only(path)


def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(b"this is not a database, but a text of some length" * 50)
    with pytest.raises(StoreError, match="not a run database") as caught:
        Store.open(path)
    assert caught.value.fault == "user"
    assert path.read_bytes().startswith(b"this is not")


def test_looking_at_a_run_that_was_never_begun(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no run"):
        Store.open_read_only(tmp_path / "none" / "run.db")
    assert not (tmp_path / "none").exists()


def test_a_reader_cannot_write_and_does_not_block_a_writer(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    reader = Store.open_read_only(tmp_path / "run.db")
    with store.write():
        meta.event(store, "test", "while a reader looks")
        assert reader.value("SELECT count(*) FROM events") == 0
    assert reader.value("SELECT count(*) FROM events") == 1
    with pytest.raises(StoreError, match="readonly|permissions"):
        reader.execute("DELETE FROM events")


def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    with pytest.raises(RuntimeError), store.write():
        meta.event(store, "test", "one")
        with store.write():
            meta.event(store, "test", "nested")
        raise RuntimeError
    assert meta.events(store) == []


def test_opening_migrates_once_even_when_several_processes_race(tmp_path: Path) -> None:
    imports = "import sys; from pathlib import Path; from lego.rundb.store import Store"
    code = f"{imports}; Store.open(Path(sys.argv[1])).close()"
    started = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run.db")]) for _ in range(4)]
    assert [process.wait() for process in started] == [0, 0, 0, 0]
    store = Store.open(tmp_path / "run.db")
    assert store.value("SELECT count(*) FROM _sqlite_migrations WHERE name = 'm001_initial'") == 1


def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    meta.put(store, "kept", "yes")
    pages = store.value("PRAGMA page_count")
    store.db.conn.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full") as caught:
        meta.put(store, "large", "x" * 5_000_000)
    assert "disk space" in caught.value.hint
    store.db.conn.execute("PRAGMA max_page_count = 1000000")
    meta.put(store, "after", "works")
    assert meta.get(store, "kept") == "yes"
    assert meta.get(store, "large") is None


def test_network_filesystems_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text

    def mounts(self: Path, *args: object, **kwargs: object) -> str:
        if str(self) == "/proc/mounts":
            return f"server:/home {tmp_path} nfs4 rw 0 0\nroot / ext4 rw 0 0\n"
        return real(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", mounts)
    with pytest.raises(StoreError, match="network filesystem"):
        _refuse_network_filesystem(tmp_path)


TAGS = {"run.seed": "identity", "train.lr": "tunable", "engine.threads": "machine", "harness": "identity"}


def test_config_identity_is_frozen_tunables_are_logged_machine_is_free(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    first = {"run.seed": 1, "train.lr": 0.1, "engine.threads": 2, "harness.tiny": 1.0}
    meta.settle_config(store, first, TAGS)
    meta.settle_config(store, first | {"train.lr": 0.2, "engine.threads": 8}, TAGS)
    assert [event["text"] for event in meta.events(store)] == ["train.lr: 0.1 -> 0.2"]
    with pytest.raises(ConfigError, match="run.seed: 1 -> 2"):
        meta.settle_config(store, first | {"run.seed": 2}, TAGS)
    with pytest.raises(ConfigError, match=r"harness\.other"):
        meta.settle_config(store, first | {"harness.other": 1.0}, TAGS)


def test_a_changed_task_is_refused(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    catalogue.register_tasks(
        store, [TaskEntry("a", "train", "1", "s", "", ""), TaskEntry("b", "eval", "2", "s", "", "")]
    )
    with pytest.raises(ConfigError, match="tasks changed since this run began: b$"):
        catalogue.register_tasks(
            store, [TaskEntry("a", "train", "1", "s", "", ""), TaskEntry("b", "eval", "X", "s", "", "")]
        )


def test_the_schema_checks_what_it_holds(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "run.db")
    with pytest.raises(sqlite3.IntegrityError):
        store.insert("rounds", {"kind": "other", "ordinal": 1, "policy_version": 0, "status": "open", "opened_at": 0.0})
