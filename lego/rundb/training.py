"""Training steps and the samples they were made of, committed before the step is taken."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lego.errors import LeaseLost, StoreError
from lego.rundb.blobs import to_json
from lego.rundb.owner import is_dead
from lego.rundb.store import Row, Store, now


@dataclass(frozen=True)
class SampleRow:
    """One segment as it enters (or, with `dropped`, does not enter) a step."""

    trial_id: int
    verdict_id: int | None
    segment: int
    advantage: float
    weight: float
    tokens: int
    dropped: str = ""


def begin_step(store: Store, *, round_id: int, kind: str, policy_from: int, samples: Sequence[SampleRow]) -> int:
    """Open the step of a round and commit its samples; one left open by a dead worker is taken over, and a refused one
    taken again.

    Returns the step's number. Raises StoreError if a live worker is at it.
    """
    with store.write():
        row = step_of_round(store, round_id)
        if row and row["status"] not in ("open", "refused"):
            raise StoreError(f"this round was already trained on (step {row['step']})", fault="user")
        if not store.value("SELECT count(*) FROM rounds WHERE id = ? AND status = 'open'", (round_id,)):
            raise StoreError("this round is no longer open", fault="user")
        if row and row["lease_owner"] != store.owner and _held(row):
            raise StoreError(f"step {row['step']} is being trained by another process", fault="user")
        if row:
            step = int(row["step"])
            store.execute("DELETE FROM samples WHERE step = ?", (step,))
            store.execute(
                "UPDATE train_steps SET status = 'open', reason = '', policy_from = ?, lease_owner = ?, lease_until = ?"
                " WHERE step = ?",
                (policy_from, store.owner, now() + store.lease, step),
            )
        else:
            step = int(store.value("SELECT coalesce(max(step), 0) + 1 FROM train_steps"))
            store.insert(
                "train_steps",
                {
                    "step": step,
                    "round_id": round_id,
                    "kind": kind,
                    "policy_from": policy_from,
                    "status": "open",
                    "opened_at": now(),
                    "lease_owner": store.owner,
                    "lease_until": now() + store.lease,
                },
            )
        for sample in samples:
            store.insert("samples", {"step": step, **vars(sample)})
    return step


def being_taught(store: Store) -> bool:
    """Whether somebody alive is at a supervised step: a policy that no round knows of is about to be the newest."""
    return any(_held(row) for row in store.rows("SELECT * FROM train_steps WHERE kind = 'sft' AND status = 'open'"))


def _held(step: Row) -> bool:
    return step["status"] == "open" and step["lease_until"] >= now() and not is_dead(step["lease_owner"])


def end_step(
    store: Store,
    step: int,
    *,
    status: str,
    reason: str,
    policy_to: int | None,
    metrics: Mapping[str, float],
    worst: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Close the step, or (status refused) put it down until it is taken again; call it inside the transaction that adds
    the policy and closes the round."""
    changed = store.execute(
        "UPDATE train_steps SET status = ?, reason = ?, policy_to = ?, metrics = ?, worst = ?, closed_at = ?,"
        " lease_owner = NULL, lease_until = NULL WHERE step = ? AND lease_owner = ? AND status = 'open'",
        (status, reason, policy_to, to_json(dict(metrics)), to_json(list(worst)), now(), step, store.owner),
    )
    if not changed:
        raise LeaseLost(f"step {step} was taken over by another worker")


def steps(store: Store) -> list[Row]:
    """Every step with its metrics and worst tokens parsed, in order."""
    rows = store.rows("SELECT * FROM train_steps ORDER BY step")
    for row in rows:
        row["metrics"] = json.loads(row["metrics"])
        row["worst"] = json.loads(row["worst"])
    return rows


def gap_words(gap: Mapping[str, Any]) -> str:
    """One line of a step's worst tokens. What the policy wrote stands in it quoted, but not made safe to print."""
    text = f" {json.dumps(gap['text'], ensure_ascii=False)}" if "text" in gap else ""
    train = "not finite" if gap["logp_train"] is None else f"{gap['logp_train']:.4f}"
    return (
        f"trial {gap['trial_id']} token {gap['token']}{text} at {gap['position']}: "
        f"log p {train} in training, {gap['logp_engine']:.4f} when sampled"
    )


def step_of_round(store: Store, round_id: int) -> Row | None:
    """The round's step, its metrics and worst tokens as text, or None."""
    return store.row("SELECT * FROM train_steps WHERE round_id = ?", (round_id,))


def samples_of_trial(store: Store, trial_id: int) -> list[Row]:
    return store.rows("SELECT * FROM samples WHERE trial_id = ? ORDER BY step, segment", (trial_id,))


def record_eval(
    store: Store,
    *,
    round_id: int,
    policy_version: int,
    n: int,
    passed: int,
    rate: float,
    low: float,
    high: float,
    detail: Mapping[str, Any],
) -> None:
    store.execute(
        "INSERT INTO evals (round_id, policy_version, at, n, passed, rate, low, high, detail)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (round_id) DO UPDATE SET at = excluded.at, n = excluded.n, passed = excluded.passed,"
        " rate = excluded.rate, low = excluded.low, high = excluded.high, detail = excluded.detail",
        (round_id, policy_version, now(), n, passed, rate, low, high, to_json(dict(detail))),
    )


def evals(store: Store) -> list[Row]:
    """Every evaluation with its detail parsed, by policy."""
    rows = store.rows("SELECT * FROM evals ORDER BY policy_version, id")
    for row in rows:
        row["detail"] = json.loads(row["detail"])
    return rows


def eval_of_round(store: Store, round_id: int) -> Row | None:
    return next((row for row in evals(store) if row["round_id"] == round_id), None)
