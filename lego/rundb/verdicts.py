"""Verdicts: append-only, the latest counts. Verification is leased on the trial's row."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lego.errors import LeaseLost
from lego.rundb.blobs import pack_bytes, to_json
from lego.rundb.pauses import later
from lego.rundb.store import Row, Store, now

MAX_ATTEMPTS = 3
"""A verification that failed on infrastructure this often leaves its trial without a reward."""
MAX_CLAIMS = 12
"""So does one that was begun this often: a submission that takes its worker down with it is given up in the end, but
a few killed workers are not held against it."""

IS_LATEST = "v.id = (SELECT max(id) FROM verdicts WHERE trial_id = t.id)"
"""The condition that verdict `v` is the one of trial `t` that counts."""
SOLVED = "(v.reward = 1.0 AND v.tamper = '[]')"
"""The condition that verdict `v` says solved: whoever tampered with the grading has solved nothing."""

_ERRORS = "SELECT count(*) FROM verdicts WHERE trial_id = ? AND outcome = 'error'"
_WAITING = (
    "SELECT t.id FROM trials t WHERE t.round_id = :round AND t.status = 'finished' AND t.verify_owner IS NULL"
    f" AND t.verify_attempts < {MAX_CLAIMS}"
    " AND (SELECT count(*) FROM verdicts v WHERE v.trial_id = t.id AND v.outcome = 'error')"
    f" < {MAX_ATTEMPTS}"
    " AND NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.trial_id = t.id AND v.outcome != 'error')"
)


def claim(store: Store, round_id: int) -> Row | None:
    """Take the next finished trial of the round that has no verdict, or None. A verifier fault is tried again, when it
    is due; what was tried last comes last."""
    with store.write():
        rows = store.rows(
            "UPDATE trials SET verify_owner = :owner, verify_until = :until, verify_attempts = verify_attempts + 1"
            f" WHERE id = ({_WAITING} AND t.verify_due <= :now ORDER BY t.verify_due, t.id LIMIT 1) RETURNING *",
            {"owner": store.owner, "until": now() + store.lease, "round": round_id, "now": now()},
        )
    return rows[0] if rows else None


def awaited(store: Store) -> bool:
    """Whether trials of open rounds still await a verdict."""
    open_rounds = store.rows("SELECT id FROM rounds WHERE status = 'open'")
    return any(waiting(store, row["id"]) or being_verified(store, row["id"]) for row in open_rounds)


def waiting(store: Store, round_id: int) -> int:
    return int(store.value(f"SELECT count(*) FROM ({_WAITING})", {"round": round_id}))


def being_verified(store: Store, round_id: int) -> int:
    return int(store.value("SELECT count(*) FROM trials WHERE round_id = ? AND verify_owner IS NOT NULL", (round_id,)))


def record(
    store: Store,
    trial_id: int,
    *,
    reward: float | None,
    outcome: str,
    detail: Mapping[str, Any],
    tamper: Sequence[Mapping[str, str]],
    trust: str,
    log: bytes,
    seconds: float,
    leased: bool = True,
) -> int:
    """Append a verdict. With `leased`, only while this process holds the verification; the lease ends with it, and
    after an infra fault the store's pause begins."""
    with store.write():
        if leased:
            held = store.execute(
                "UPDATE trials SET verify_owner = NULL, verify_until = NULL WHERE id = ? AND verify_owner = ?",
                (trial_id, store.owner),
            )
            if not held:
                raise LeaseLost(f"the verification of trial {trial_id} was taken over by another worker")
            if outcome == "error" and detail.get("fault") == "infra":
                tries = 1 + int(store.value(_ERRORS, (trial_id,)))
                store.execute("UPDATE trials SET verify_due = ? WHERE id = ?", (later(store.pause, tries), trial_id))
        return store.insert(
            "verdicts",
            {
                "trial_id": trial_id,
                "at": now(),
                "reward": reward,
                "outcome": outcome,
                "detail": to_json(dict(detail)),
                "tamper": to_json(list(tamper)),
                "trust": trust,
                "log": pack_bytes(log),
                "seconds": seconds,
            },
        )


def release(store: Store, trial_id: int) -> None:
    """Give a claimed verification back untouched."""
    store.execute(
        "UPDATE trials SET verify_owner = NULL, verify_until = NULL, verify_attempts = verify_attempts - 1"
        " WHERE id = ? AND verify_owner = ?",
        (trial_id, store.owner),
    )


def latest(store: Store, trial_id: int) -> Row | None:
    return store.row("SELECT * FROM verdicts WHERE trial_id = ? ORDER BY id DESC LIMIT 1", (trial_id,))


def graded(store: Store, round_id: int) -> list[Row]:
    """The round's finished trials that have a verdict, with the latest one and whether it says solved; trial order."""
    return store.rows(
        "SELECT t.id, t.task_id, t.harness, t.sample, t.attempt, t.ending, t.summary, v.id AS verdict_id, v.reward,"
        f" v.outcome, v.tamper, {SOLVED} AS solved FROM trials t JOIN verdicts v ON {IS_LATEST}"
        " WHERE t.round_id = ? AND t.status = 'finished' ORDER BY t.id",
        (round_id,),
    )


def by_task(store: Store) -> dict[str, tuple[int, int]]:
    """Task id to (trials solved, trials with a reward) over all rounds whose trials the policy sampled."""
    rows = store.rows(
        f"SELECT t.task_id, coalesce(sum({SOLVED}), 0) AS solved, count(*) AS graded FROM trials t"
        f" JOIN verdicts v ON {IS_LATEST} JOIN rounds r ON r.id = t.round_id"
        " WHERE t.status = 'finished' AND v.reward IS NOT NULL AND json_extract(r.settings, '$.sampler') = 'policy'"
        " GROUP BY t.task_id ORDER BY t.task_id"
    )
    return {row["task_id"]: (row["solved"], row["graded"]) for row in rows}


def tampering(store: Store, round_id: int) -> dict[str, list[int]]:
    """Kind of tamper finding -> the round's trials whose verdict that counts has one; the most frequent first."""
    found: dict[str, set[int]] = {}
    for row in store.rows(
        f"SELECT t.id, v.tamper FROM trials t JOIN verdicts v ON {IS_LATEST} WHERE t.round_id = ? AND v.tamper != '[]'",
        (round_id,),
    ):
        for finding in json.loads(row["tamper"]):
            found.setdefault(finding["kind"], set()).add(row["id"])
    return {kind: sorted(ids) for kind, ids in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))}


def infra_streak(store: Store, round_id: int) -> list[str]:
    """The reasons of the round's last verdicts, the latest first, as long as they are infra faults in a row."""
    streak: list[str] = []
    for row in store.rows(
        "SELECT v.outcome, v.detail FROM verdicts v JOIN trials t ON t.id = v.trial_id WHERE t.round_id = ?"
        " ORDER BY v.id DESC LIMIT 50",
        (round_id,),
    ):
        detail = json.loads(row["detail"])
        if row["outcome"] != "error" or detail.get("fault") != "infra":
            break
        streak.append(str(detail.get("reason", "")))
    return streak


def finished(store: Store, round_id: int) -> list[Row]:
    """`id` and `task_id` of every finished trial of the round."""
    return store.rows(
        "SELECT id, task_id FROM trials WHERE round_id = ? AND status = 'finished' ORDER BY id", (round_id,)
    )
