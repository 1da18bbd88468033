"""What a run is made of: its tasks, images, baselines and policies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lego.errors import ConfigError, StoreError
from lego.policy import PolicyRef
from lego.rundb.blobs import pack_bytes, to_json
from lego.rundb.store import Row, Store, now

Split = Literal["train", "eval"]


@dataclass(frozen=True)
class TaskEntry:
    id: str
    split: Split
    digest: str
    source: str
    instruction: str
    place: str


def register_tasks(store: Store, entries: Sequence[TaskEntry]) -> None:
    """Record the run's tasks at first use; refuse a task set that differs from the recorded one."""
    with store.write():
        saved = {row["id"]: (row["split"], row["digest"]) for row in store.rows("SELECT id, split, digest FROM tasks")}
        current = {entry.id: (entry.split, entry.digest) for entry in entries}
        if saved and saved != current:
            names = sorted(key for key in saved.keys() | current.keys() if saved.get(key) != current.get(key))
            raise ConfigError(
                f"tasks changed since this run began: {', '.join(names[:3])}{' …' if len(names) > 3 else ''}",
                hint="a run's tasks are frozen at first use; give the changed run another run.name",
            )
        if not saved:
            for position, entry in enumerate(entries):
                store.insert("tasks", {**vars(entry), "position": position})


def task_ids(store: Store, split: Split) -> list[str]:
    return [row["id"] for row in store.rows("SELECT id FROM tasks WHERE split = ? ORDER BY position", (split,))]


def record_image(
    store: Store,
    *,
    key: str,
    kind: str,
    name: str,
    tag: str,
    status: str,
    log_path: str,
    seconds: float,
    size: int,
    reason: str,
) -> None:
    store.execute(
        "INSERT INTO images (key, kind, name, tag, status, log_path, seconds, bytes, reason, at)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET status = excluded.status,"
        " log_path = excluded.log_path, seconds = excluded.seconds, bytes = excluded.bytes, reason = excluded.reason,"
        " at = excluded.at",
        (key, kind, name, tag, status, log_path, seconds, size, reason, now()),
    )


def images(store: Store) -> list[Row]:
    return store.rows("SELECT * FROM images ORDER BY kind, name")


def is_task(store: Store, task_id: str) -> bool:
    return store.value("SELECT 1 FROM tasks WHERE id = ?", (task_id,)) is not None


def record_baseline(
    store: Store,
    *,
    task_id: str,
    kind: str,
    reward: float | None,
    outcome: str,
    detail: dict[str, Any],
    log: bytes,
    seconds: float,
) -> None:
    store.insert(
        "baselines",
        {
            "task_id": task_id,
            "kind": kind,
            "at": now(),
            "reward": reward,
            "outcome": outcome,
            "detail": to_json(detail),
            "log": pack_bytes(log),
            "seconds": seconds,
        },
    )


def gold_paths(store: Store, task_id: str) -> list[str]:
    """The absolute paths that the task's solution changed when it last passed the oracle check; none before that."""
    return _of_gold(store, task_id, "changed") or []


def seen_key(step: str = "") -> str:
    """Where a gold baseline's detail holds what its tests showed, or those of one of its steps."""
    return f"seen {step}" if step else "seen"


def gold_seen(store: Store, task_id: str, step: str = "") -> dict[str, Any] | None:
    """What the tests, or those of a step, showed when they last passed with the task's solution; None before that."""
    return _of_gold(store, task_id, seen_key(step))


def gold_lines(store: Store, task_id: str) -> list[str]:
    """Marks of the lines that the task's solution adds (lego.verifier.likeness), as `gold_paths`."""
    return _of_gold(store, task_id, "lines") or []


def _of_gold(store: Store, task_id: str, key: str) -> Any:
    """A part of the latest passed gold baseline's detail that has it."""
    detail = store.value(
        "SELECT detail FROM baselines WHERE task_id = ? AND kind = 'gold' AND outcome = 'passed'"
        " AND detail ->> ? IS NOT NULL ORDER BY id DESC LIMIT 1",
        (task_id, key),
    )
    return json.loads(detail)[key] if detail else None


def add_policy(store: Store, *, parent: int | None, path: str, digest: str, made_by: str) -> PolicyRef:
    """The next version: 0 is the starting model."""
    with store.write():
        version = int(store.value("SELECT coalesce(max(version) + 1, 0) FROM policies"))
        store.insert(
            "policies",
            {"version": version, "parent": parent, "path": path, "digest": digest, "made_by": made_by, "at": now()},
        )
    return PolicyRef(version, path, digest)


def policy(store: Store, version: int | None = None) -> PolicyRef | None:
    """That version, or the newest; None if there is none."""
    row = store.row(
        "SELECT * FROM policies WHERE version = coalesce(?, (SELECT max(version) FROM policies))", (version,)
    )
    if row is None:
        return None
    if row["removed_at"] is not None:
        raise StoreError(f"policy {row['version']} was removed by the retention rule", fault="user")
    return PolicyRef(row["version"], row["path"], row["digest"])


def policies(store: Store) -> list[Row]:
    return store.rows("SELECT * FROM policies ORDER BY version")


def reference(store: Store) -> PolicyRef:
    """What reinforcement learning began from: the newest policy before the first that it made. What is taught later
    (`lego sft` in the middle of a run) is not what it began from."""
    row = store.row(
        "SELECT * FROM policies WHERE version < (SELECT coalesce(min(version), 1 << 62) FROM policies"
        " WHERE made_by = 'train') ORDER BY version DESC LIMIT 1"
    )
    assert row is not None, "a run has a policy before it has a round"
    return PolicyRef(row["version"], row["path"], row["digest"])


def removable_policies(store: Store, keep: int) -> list[Row]:
    """Policies that `lego train` made, beyond the newest `keep` + 1, that no open round needs."""
    return store.rows(
        "SELECT * FROM policies WHERE made_by = 'train' AND removed_at IS NULL"
        " AND version < (SELECT max(version) FROM policies) - ?"
        " AND version NOT IN (SELECT policy_version FROM rounds WHERE status = 'open') ORDER BY version",
        (keep,),
    )


def mark_removed(store: Store, version: int) -> None:
    store.execute("UPDATE policies SET removed_at = ? WHERE version = ?", (now(), version))
