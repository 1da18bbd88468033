"""Rounds: which tasks, with which harness, in how many samples, from which policy."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lego.rundb.blobs import to_json
from lego.rundb.store import Row, Store, now

RoundKind = Literal["train", "eval", "demo"]


@dataclass(frozen=True)
class Round:
    id: int
    kind: RoundKind
    ordinal: int
    policy_version: int
    settings: Mapping[str, Any]
    open: bool


def _round(row: Row) -> Round:
    return Round(
        row["id"],
        row["kind"],
        row["ordinal"],
        row["policy_version"],
        json.loads(row["settings"]),
        row["status"] == "open",
    )


def latest(store: Store, kind: RoundKind) -> Round | None:
    row = store.row("SELECT * FROM rounds WHERE kind = ? ORDER BY ordinal DESC LIMIT 1", (kind,))
    return _round(row) if row else None


def get(store: Store, round_id: int) -> Round:
    row = store.row("SELECT * FROM rounds WHERE id = ?", (round_id,))
    if row is None:
        raise KeyError(round_id)
    return _round(row)


def all_rounds(store: Store) -> list[Round]:
    return [_round(row) for row in store.rows("SELECT * FROM rounds ORDER BY id")]


def pick_tasks(ids: Sequence[str], seed: int, ordinal: int, count: int) -> list[str]:
    """The tasks of round `ordinal` (from 1): a window over seeded permutations of all tasks, one after another.

    Every task comes up once before any comes up again; count 0, or more than there are, means all of them.
    """
    if count <= 0 or count >= len(ids):
        order = list(ids)
        random.Random(f"{seed}/{ordinal}").shuffle(order)
        return order
    chosen: list[str] = []
    start = (ordinal - 1) * count
    for position in range(start, start + count):
        epoch, offset = divmod(position, len(ids))
        order = list(ids)
        random.Random(f"{seed}/epoch/{epoch}").shuffle(order)
        chosen.append(order[offset])
    return list(dict.fromkeys(chosen))


def pick_harness(weights: Mapping[str, float], seed: int, ordinal: int, task_id: str) -> str:
    """One harness for the whole group of a task, by weight and seed."""
    names = sorted(weights)
    return random.Random(f"{seed}/{ordinal}/{task_id}").choices(names, [weights[name] for name in names])[0]


def open_round(
    store: Store,
    kind: RoundKind,
    *,
    ordinal: int,
    policy_version: int,
    tasks: Sequence[tuple[str, str]],
    samples: int,
    settings: Mapping[str, Any],
) -> Round:
    """Open a round with all its trials pending, in one transaction. If another process was first, join its round.

    tasks: (task id, harness) in order.
    """
    with store.write():
        existing = store.row("SELECT * FROM rounds WHERE kind = ? AND ordinal = ?", (kind, ordinal))
        if existing:
            return _round(existing)
        round_id = store.insert(
            "rounds",
            {
                "kind": kind,
                "ordinal": ordinal,
                "policy_version": policy_version,
                "settings": to_json(dict(settings)),
                "status": "open",
                "opened_at": now(),
            },
        )
        add_tasks(store, round_id, tasks, samples)
        return get(store, round_id)


def add_tasks(store: Store, round_id: int, tasks: Sequence[tuple[str, str]], samples: int) -> None:
    """Append (task id, harness) to a round, with all their trials pending, in one transaction."""
    with store.write():
        begin = store.value("SELECT coalesce(max(position) + 1, 0) FROM round_tasks WHERE round_id = ?", (round_id,))
        for position, (task_id, harness) in enumerate(tasks, start=int(begin)):
            store.insert(
                "round_tasks", {"round_id": round_id, "position": position, "task_id": task_id, "harness": harness}
            )
            for sample in range(samples):
                store.insert(
                    "trials",
                    {
                        "round_id": round_id,
                        "task_id": task_id,
                        "harness": harness,
                        "sample": sample,
                        "attempt": 1,
                        "status": "pending",
                    },
                )


def close_round(store: Store, round_id: int, reason: str) -> None:
    """Close it, whether or not a step came of it."""
    store.execute(
        "UPDATE rounds SET status = 'closed', closed_at = ?, reason = ? WHERE id = ? AND status = 'open'",
        (now(), reason, round_id),
    )


def tasks_of(store: Store, round_id: int) -> list[tuple[str, str]]:
    """(task id, harness) of a round, in order."""
    rows = store.rows("SELECT task_id, harness FROM round_tasks WHERE round_id = ? ORDER BY position", (round_id,))
    return [(row["task_id"], row["harness"]) for row in rows]
