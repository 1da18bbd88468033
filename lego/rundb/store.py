"""One SQLite database a run: opening, migrating, transactions. The other modules here are its table groups."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from lego.errors import StoreError
from lego.rundb.migrations import migrations
from lego.rundb.owner import new_owner

Row = dict[str, Any]
Params = Sequence[Any] | Mapping[str, Any]

_PATIENCE, _PAUSE = 30.0, 0.01
"""Seconds: how long a lock is waited for, and between two tries where SQLite itself does not wait."""

_NETWORK_FILESYSTEMS = {
    "nfs",
    "nfs4",
    "cifs",
    "smb2",
    "smbfs",
    "9p",
    "fuse.sshfs",
    "afs",
    "lustre",
    "ceph",
    "glusterfs",
}


class Store:
    """A run database. One writer a process; use it from one thread.

    `owner` names this process in leases. `lease` is how long, in seconds, a silent owner keeps its work. `pause`: how
    long what infrastructure broke waits before it is tried again.
    """

    def __init__(
        self, path: Path, db: Database, *, lease: float = 60.0, pause: float = 0.0, read_only: bool = False
    ) -> None:
        self.path = path
        self.db = db
        self.lease = lease
        self.pause = pause
        self.owner = new_owner()
        self.read_only = read_only

    @classmethod
    def open(cls, path: Path, *, lease: float = 60.0, pause: float = 0.0) -> Store:
        """Open the database, making it (and its folder) if need be, and bring its schema up to date."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot make the run's folder {path.parent}: {error.strerror}",
                fault="user",
                hint="set run.dir to a folder you can write",
            ) from error
        _refuse_network_filesystem(path.parent)
        with _explained(path):
            fresh = not path.exists() or not path.stat().st_size
            connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
            db = Database(connection)
            if fresh:
                db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _log_ahead(connection)
            # What was acknowledged survives a killed process; a power cut can cost the last moments, never the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
            store = cls(path, db, lease=lease, pause=pause)
            _refuse_newer(path, db)
            if migrations.pending(db):
                with store.write():
                    migrations.apply(db)
        return store

    @classmethod
    def open_read_only(cls, path: Path) -> Store:
        """Open for looking only: never writes, never blocks a writer."""
        if not path.exists():
            raise StoreError(
                f"there is no run at {path}",
                fault="user",
                hint="a stage such as `lego rollout -c CONFIG` begins the run",
            )
        with _explained(path):
            db = Database(_connect_read_only(path))
            _refuse_newer(path, db)
        return cls(path, db, read_only=True)

    @contextmanager
    def write(self) -> Iterator[None]:
        """A short write transaction; nested use joins the open one."""
        connection = self.db.conn
        if connection.in_transaction:
            yield
            return
        with _explained(self.path):
            connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # A full disk can already have rolled the transaction back.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        with _explained(self.path):
            try:
                connection.execute("COMMIT")
            except sqlite3.Error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        with _explained(self.path):
            cursor = self.db.conn.execute(sql, params)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, params: Params = ()) -> Row | None:
        found = self.rows(sql, params)
        return found[0] if found else None

    def value(self, sql: str, params: Params = ()) -> Any:
        """The first column of the first row, or None."""
        with _explained(self.path):
            found = self.db.conn.execute(sql, params).fetchone()
        return found[0] if found else None

    def execute(self, sql: str, params: Params = ()) -> int:
        """Run one statement in a write transaction and return how many rows it changed."""
        with self.write(), _explained(self.path):
            return self.db.conn.execute(sql, params).rowcount

    def insert(self, table: str, values: Row) -> int:
        """Insert one row and return its rowid."""
        names = ", ".join(values)
        marks = ", ".join("?" * len(values))
        with self.write(), _explained(self.path):
            cursor = self.db.conn.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
            return int(cursor.lastrowid or 0)

    def shrink(self) -> None:
        """Give the file's free pages back to the disk."""
        with _explained(self.path):
            self.db.conn.execute("PRAGMA incremental_vacuum").fetchall()
            self.db.conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def close(self) -> None:
        self.db.close()


def now() -> float:
    """Unix time in seconds: the only clock that rows carry."""
    return time.time()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if "disk is full" in text or "disk I/O error" in text:
            raise StoreError(
                f"cannot write {path}: {text}", hint="free some disk space, then run the command again"
            ) from error
        if "locked" in text:
            raise StoreError(
                f"{path} stayed locked for {_PATIENCE:.0f} s by another process", hint="is another lego stuck?"
            ) from error
        if "unable to open" in text or "readonly" in text:
            raise StoreError(
                f"cannot open {path}: {text}", fault="user", hint="check the folder's permissions"
            ) from error
        raise
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise StoreError(f"{path} is not a run database: {error}", fault="user") from error


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Set the file's journal mode. Where another process is at that at the same moment, as two commands that begin one
    run are, SQLite does not wait for it as it otherwise does."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(_PAUSE)


def _refuse_newer(path: Path, db: Database) -> None:
    known = {migration.name for migration in migrations.pending(Database(memory=True))}
    newer = [migration.name for migration in migrations.applied(db) if migration.name not in known]
    if newer:
        raise StoreError(
            f"{path} was written by a newer lego (it has {newer[-1]})",
            fault="user",
            hint="upgrade lego to use this run",
        )


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Beside running writers through the index that they share. Where nobody runs and a full disk has no room for that
    index, without one: the file alone, or under a lock of our own where a killed writer left a log beside it."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_PATIENCE, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        return connection
    except sqlite3.OperationalError as error:
        connection.close()
        if not str(error).startswith(("disk I/O error", "database or disk is full")):
            raise
    log = path.with_name(f"{path.name}-wal")
    if not (log.exists() and log.stat().st_size):
        return sqlite3.connect(f"file:{path}?immutable=1", uri=True, isolation_level=None)
    connection = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE").fetchone()
    return connection


def _refuse_network_filesystem(folder: Path) -> None:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return
    here = os.path.realpath(folder)
    inside = [(len(point), kind) for _, point, kind, *_ in mounts if os.path.commonpath([here, point]) == point]
    kind = max(inside, default=(0, ""))[1]
    if kind in _NETWORK_FILESYSTEMS:
        raise StoreError(
            f"{folder} is on a network filesystem ({kind}), where SQLite's locks do not hold",
            fault="user",
            hint="set run.dir to a local folder",
        )


def git_commit(folder: Path) -> str:
    """The commit of the checkout `folder` is in, "" if it is in none or git is not installed."""
    try:
        result = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""
