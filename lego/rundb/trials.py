"""Trials: claimed under a lease, fenced by it, retried after infrastructure faults alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lego.errors import Fault, LeaseLost
from lego.rundb.blobs import pack_bytes, to_json
from lego.rundb.owner import is_dead
from lego.rundb.pauses import later
from lego.rundb.store import Row, Store, now


@dataclass(frozen=True)
class Trial:
    """One attempt of one sample of one task, as claimed."""

    id: int
    round_id: int
    task_id: str
    harness: str
    sample: int
    attempt: int


def _trial(row: Row) -> Trial:
    return Trial(row["id"], row["round_id"], row["task_id"], row["harness"], row["sample"], row["attempt"])


def claim(store: Store, round_id: int) -> Trial | None:
    """Take the next pending trial of the round that is due, or None; what was tried last comes last."""
    with store.write():
        rows = store.rows(
            "UPDATE trials SET status = 'running', lease_owner = ?, lease_until = ?, started_at = ? WHERE id ="
            " (SELECT id FROM trials WHERE round_id = ? AND status = 'pending' AND due <= ?"
            " ORDER BY due, attempt, id LIMIT 1) RETURNING *",
            (store.owner, now() + store.lease, now(), round_id, now()),
        )
    return _trial(rows[0]) if rows else None


def release(store: Store, trial: Trial) -> None:
    """Give a claimed trial back untouched (a graceful stop): its calls go, and it is pending again."""
    with store.write():
        _fenced(store, trial)
        store.execute("DELETE FROM calls WHERE trial_id = ?", (trial.id,))
        store.execute(
            "UPDATE trials SET status = 'pending', lease_owner = NULL, lease_until = NULL, started_at = NULL"
            " WHERE id = ?",
            (trial.id,),
        )


def renew(store: Store) -> None:
    """Extend every lease this process holds."""
    until = now() + store.lease
    with store.write():
        store.execute(
            "UPDATE trials SET lease_until = ? WHERE lease_owner = ? AND status = 'running'", (until, store.owner)
        )
        store.execute("UPDATE trials SET verify_until = ? WHERE verify_owner = ?", (until, store.owner))
        store.execute(
            "UPDATE train_steps SET lease_until = ? WHERE lease_owner = ? AND status = 'open'", (until, store.owner)
        )


def _expired(owner: str, until: float) -> bool:
    return until < now() or is_dead(owner)


def reclaim(store: Store, round_id: int, max_attempts: int) -> int:
    """Close the attempts whose owner is gone (infra; their calls stay as evidence) and open the next ones.

    Returns how many were closed. An attempt beyond `max_attempts` is not opened: the slot stays empty.
    """
    closed = 0
    with store.write():
        for row in store.rows("SELECT * FROM trials WHERE round_id = ? AND status = 'running'", (round_id,)):
            if _expired(row["lease_owner"], row["lease_until"]):
                _close_failed(store, row, "infra", "lease", "its worker disappeared", max_attempts)
                closed += 1
        for row in store.rows(
            "SELECT id, verify_owner, verify_until FROM trials WHERE round_id = ? AND verify_owner IS NOT NULL",
            (round_id,),
        ):
            if _expired(row["verify_owner"], row["verify_until"]):
                store.execute("UPDATE trials SET verify_owner = NULL, verify_until = NULL WHERE id = ?", (row["id"],))
    return closed


def _close_failed(store: Store, row: Row, fault: Fault, ending: str, reason: str, max_attempts: int) -> None:
    store.execute(
        "UPDATE trials SET status = 'failed', fault = ?, ending = ?, reason = ?, ended_at = ?, lease_owner = NULL,"
        " lease_until = NULL WHERE id = ?",
        (fault, ending, reason, now(), row["id"]),
    )
    if fault == "infra" and row["attempt"] < max_attempts:
        store.insert(
            "trials",
            {
                "round_id": row["round_id"],
                "task_id": row["task_id"],
                "harness": row["harness"],
                "sample": row["sample"],
                "attempt": row["attempt"] + 1,
                "status": "pending",
                # A worker's death says nothing of the machine.
                "due": 0.0 if ending == "lease" else later(store.pause, row["attempt"]),
            },
        )


def _fenced(store: Store, trial: Trial) -> Row:
    row = store.row(
        "SELECT * FROM trials WHERE id = ? AND lease_owner = ? AND status = 'running'", (trial.id, store.owner)
    )
    if row is None:
        raise LeaseLost(f"trial {trial.id} was taken over by another worker")
    return row


def fail(store: Store, trial: Trial, fault: Fault, reason: str, max_attempts: int) -> None:
    """Close the attempt without a submission. An infra fault opens the next attempt, up to the cap, for when the
    store's pause is over."""
    with store.write():
        _close_failed(store, _fenced(store, trial), fault, "error", reason, max_attempts)


def finish(
    store: Store,
    trial: Trial,
    *,
    ending: str,
    reason: str,
    exit_code: int | None,
    seconds: float,
    waited: float,
    summary: Mapping[str, Any],
    output: bytes,
    submission: bytes,
    submission_digest: str,
    submission_note: Mapping[str, Any],
) -> None:
    """Close the attempt with what the agent left. `ending` is exit, timeout, turns, tokens, length, oom, disk…"""
    with store.write():
        _fenced(store, trial)
        store.execute(
            "UPDATE trials SET status = 'finished', ending = ?, reason = ?, exit_code = ?, seconds = ?, waited = ?,"
            " summary = ?, output = ?, submission = ?, submission_digest = ?, submission_note = ?, ended_at = ?,"
            " lease_owner = NULL, lease_until = NULL WHERE id = ?",
            (
                ending,
                reason,
                exit_code,
                seconds,
                waited,
                to_json(dict(summary)),
                pack_bytes(output),
                submission,
                submission_digest,
                to_json(dict(submission_note)),
                now(),
                trial.id,
            ),
        )


def trial(store: Store, trial_id: int) -> Row | None:
    return store.row("SELECT * FROM trials WHERE id = ?", (trial_id,))


def counts(store: Store, round_id: int) -> dict[str, int]:
    """status -> rows, over every attempt of the round."""
    return {
        row["status"]: row["n"]
        for row in store.rows(
            "SELECT status, count(*) AS n FROM trials WHERE round_id = ? GROUP BY status", (round_id,)
        )
    }


def unfinished(store: Store, round_id: int) -> int:
    """Trials still to be run or running."""
    return int(
        store.value("SELECT count(*) FROM trials WHERE round_id = ? AND status IN ('pending', 'running')", (round_id,))
    )


def infra_streak(store: Store, round_id: int) -> list[str]:
    """The reasons of the last closed attempts, the latest first, as long as they are infra faults in a row."""
    streak: list[str] = []
    for row in _closed(store, round_id):
        if row["fault"] != "infra":
            break
        streak.append(row["reason"])
    return streak


def last_reason(store: Store, round_id: int) -> str:
    """Why the attempt that was closed last ended as it did."""
    closed = _closed(store, round_id)
    return str(closed[0]["reason"]) if closed else ""


def _closed(store: Store, round_id: int) -> list[Row]:
    return store.rows(
        "SELECT fault, reason FROM trials WHERE round_id = ? AND ended_at IS NOT NULL AND ending != 'lease'"
        " ORDER BY ended_at DESC LIMIT 50",
        (round_id,),
    )
