"""A round in numbers, for people and machines to look at; reads only."""

from __future__ import annotations

from dataclasses import dataclass, field

from lego.rundb import calls
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.rundb.verdicts import IS_LATEST, SOLVED

_SLOTS = "count(DISTINCT task_id || char(31) || harness || char(31) || sample)"
# The round's own trials only: the cost of a summary must not grow with the run.
_VERDICTS = f"trials t JOIN verdicts v ON {IS_LATEST} WHERE t.round_id = ?"


@dataclass(frozen=True)
class RoundSummary:
    """Slots are (task, harness, sample); each holds at most one finished trial.

    slots: in all. done: finished, or given up on. running, pending: attempts. empty: slots that infra faults left
    without a trial. infra: attempts lost to infrastructure. faults: closed without a submission, by fault.
    endings: finished trials by how they ended. verified: with a reward. outcomes: verdicts by outcome.
    solved: rewards of 1 without a finding of tampering. reward: mean over rewards, None without any.
    tampered: verdicts with findings.
    calls, sampled, prompted: model calls and tokens, of lost attempts too. turns: mean calls of a finished trial, None
    without any. seconds: first call's start to last call's end.
    """

    slots: int
    done: int
    running: int
    pending: int
    empty: int
    infra: int
    finished: int
    verified: int
    solved: int
    tampered: int
    unverified: int
    reward: float | None
    calls: int
    turns: float | None
    sampled: int
    prompted: int
    seconds: float
    endings: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    faults: dict[str, int] = field(default_factory=dict)


def summarise(store: Store, round_: Round) -> RoundSummary:
    one = (round_.id,)
    status = _counted(store, "SELECT status AS name, count(*) AS n FROM trials WHERE round_id = ? GROUP BY status", one)
    slots = int(store.value(f"SELECT {_SLOTS} FROM trials WHERE round_id = ?", one))
    verdict = store.row(
        f"SELECT count(v.reward) AS verified, coalesce(sum({SOLVED}), 0) AS solved, avg(v.reward) AS reward,"
        f" coalesce(sum(v.tamper != '[]'), 0) AS tampered FROM {_VERDICTS}",
        one,
    )
    assert verdict is not None
    totals = calls.totals(store, round_.id)
    finished, running, pending = (status.get(name, 0) for name in ("finished", "running", "pending"))
    faults = _counted(
        store,
        "SELECT fault AS name, count(*) AS n FROM trials WHERE round_id = ? AND fault IS NOT NULL GROUP BY fault",
        one,
    )
    open_slots = int(
        store.value(f"SELECT {_SLOTS} FROM trials WHERE round_id = ? AND status IN ('pending', 'running')", one)
    )
    return RoundSummary(
        slots=slots,
        done=slots - open_slots,
        running=running,
        pending=pending,
        empty=slots - open_slots - finished,
        infra=faults.get("infra", 0),
        finished=finished,
        verified=verdict["verified"],
        solved=verdict["solved"],
        tampered=verdict["tampered"],
        unverified=finished - verdict["verified"],
        reward=verdict["reward"],
        calls=totals["calls"],
        turns=totals["of_finished"] / finished if finished else None,
        sampled=totals["sampled"],
        prompted=totals["prompted"],
        seconds=(totals["last"] or 0.0) - (totals["first"] or 0.0),
        endings=_counted(
            store,
            "SELECT ending AS name, count(*) AS n FROM trials"
            " WHERE round_id = ? AND status = 'finished' GROUP BY ending",
            one,
        ),
        outcomes=_counted(store, f"SELECT v.outcome AS name, count(*) AS n FROM {_VERDICTS} GROUP BY v.outcome", one),
        faults=faults,
    )


def _counted(store: Store, sql: str, params: tuple[int, ...]) -> dict[str, int]:
    return {row["name"]: row["n"] for row in store.rows(sql, params)}
