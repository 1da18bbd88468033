"""What the monitor and the report look at: counts a round, pages of trials, the task grid. Reads only.

Every query is bounded by one round or one page, so that a run of any length can be watched cheaply.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from lego.rundb.store import Row, Store
from lego.rundb.verdicts import IS_LATEST, SOLVED

STATES: dict[str, str] = {
    "all": "",
    "running": "t.status = 'running'",
    "pending": "t.status = 'pending'",
    "finished": "t.status = 'finished'",
    "failed": "t.status = 'failed'",
    "solved": SOLVED,
    "unsolved": f"v.reward IS NOT NULL AND NOT {SOLVED}",
    "unverified": "t.status = 'finished' AND v.reward IS NULL",
    "tamper": "v.tamper != '[]'",
    "broken": "v.outcome = 'broken'",
    "infra": "t.fault = 'infra'",
}
"""The filters of a list of trials, by name. A solved trial has reward 1 and no tamper finding."""

_OF_VERDICTS = frozenset(("solved", "unsolved", "unverified", "tamper", "broken"))
_ORDER = ("running", "finished", "failed", "pending")


def data_version(store: Store) -> int:
    """A number that changes when another connection has written; costs next to nothing."""
    return int(store.value("PRAGMA data_version"))


@contextmanager
def snapshot(store: Store) -> Iterator[None]:
    """What is read inside is of one moment. Keep it short: it holds back the writer's checkpoint."""
    connection = store.db.conn
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("COMMIT")


@dataclass(frozen=True)
class RoundView:
    """A round and how far it is.

    slots: (task, harness, sample) places; done: of these, finished or given up on. Attempts: pending, running,
    finished, failed; infra: of the failed, those that infrastructure ended. verified: with a reward; solved: reward
    1 and no tamper finding; tampered: with findings; broken: of the verdicts. reward: mean, None without any.
    owners: lease holders of what runs now, as (what, owner, until), `what` being rollout or verify.
    """

    id: int
    kind: str
    ordinal: int
    policy: int
    open: bool
    reason: str
    opened_at: float
    closed_at: float | None
    slots: int = 0
    done: int = 0
    pending: int = 0
    running: int = 0
    finished: int = 0
    failed: int = 0
    infra: int = 0
    verified: int = 0
    solved: int = 0
    tampered: int = 0
    broken: int = 0
    reward: float | None = None
    owners: tuple[tuple[str, str, float], ...] = ()

    @property
    def rate(self) -> float | None:
        """Solved of verified, None before the first verdict."""
        return self.solved / self.verified if self.verified else None


def round_heads(store: Store) -> list[RoundView]:
    """Every round in order, without counts."""
    return [
        RoundView(
            row["id"],
            row["kind"],
            row["ordinal"],
            row["policy_version"],
            row["status"] == "open",
            row["reason"],
            row["opened_at"],
            row["closed_at"],
        )
        for row in store.rows(
            "SELECT id, kind, ordinal, policy_version, status, reason, opened_at, closed_at FROM rounds ORDER BY id"
        )
    ]


def counted(store: Store, head: RoundView) -> RoundView:
    """The round with its counts."""
    one = (head.id,)
    status = {
        row["status"]: row["n"]
        for row in store.rows("SELECT status, count(*) AS n FROM trials WHERE round_id = ? GROUP BY status", one)
    }
    verdict = store.row(
        f"SELECT count(v.reward) AS verified, coalesce(sum({SOLVED}), 0) AS solved, avg(v.reward) AS reward,"
        " coalesce(sum(v.tamper != '[]'), 0) AS tampered, coalesce(sum(v.outcome = 'broken'), 0) AS broken"
        f" FROM trials t JOIN verdicts v ON {IS_LATEST} WHERE t.round_id = ? AND t.status = 'finished'",
        one,
    )
    assert verdict is not None
    pending, running, finished = (status.get(name, 0) for name in ("pending", "running", "finished"))
    slots = int(store.value("SELECT count(*) FROM trials WHERE round_id = ? AND attempt = 1", one))
    return replace(
        head,
        slots=slots,
        done=slots - pending - running,
        pending=pending,
        running=running,
        finished=finished,
        failed=status.get("failed", 0),
        infra=int(
            store.value("SELECT count(*) FROM trials WHERE round_id = ? AND status = 'failed' AND fault = 'infra'", one)
        ),
        owners=_owners(store, head.id) if head.open else (),
        **verdict,
    )


def _owners(store: Store, round_id: int) -> tuple[tuple[str, str, float], ...]:
    rows = store.rows(
        "SELECT 'rollout' AS what, lease_owner AS owner, max(lease_until) AS until FROM trials"
        " WHERE round_id = :id AND status = 'running' GROUP BY lease_owner"
        " UNION ALL SELECT 'verify', verify_owner, max(verify_until) FROM trials"
        " WHERE round_id = :id AND status = 'finished' AND verify_owner IS NOT NULL GROUP BY verify_owner",
        {"id": round_id},
    )
    return tuple((row["what"], row["owner"], row["until"]) for row in rows)


def newest_verdict(store: Store) -> int:
    return int(store.value("SELECT coalesce(max(id), 0) FROM verdicts"))


def rounds_with_verdicts_after(store: Store, verdict_id: int) -> set[int]:
    """The rounds that got verdicts after that one: closed ones too, when they are verified again."""
    rows = store.rows(
        "SELECT DISTINCT t.round_id FROM verdicts v JOIN trials t ON t.id = v.trial_id WHERE v.id > ?", (verdict_id,)
    )
    return {row["round_id"] for row in rows}


def open_steps(store: Store) -> list[Row]:
    """Training steps that are being taken: step, kind, owner, until."""
    return store.rows(
        "SELECT step, kind, lease_owner AS owner, lease_until AS until FROM train_steps WHERE status = 'open'"
    )


@dataclass(frozen=True)
class TrialQuery:
    """Which trials. round_id None means every round; `state` is a name in STATES; `text` is looked for in task,
    harness, reason and ending, whatever its case; `task` is exact."""

    round_id: int | None = None
    state: str = "all"
    text: str = ""
    task: str = ""


Way = Literal["down", "up"]


@dataclass(frozen=True)
class Page:
    """rows: in list order. above, below: whether there is more on that side. before: the anchor that gives this page
    again, reading down."""

    rows: list[Row]
    above: bool
    below: bool
    before: tuple[str, int] | None


def trials_page(
    store: Store, query: TrialQuery, *, anchor: tuple[str, int] | None = None, way: Way = "down", limit: int = 100
) -> Page:
    """One page of a list of trials, without blobs.

    In a round: running ones first, then finished, failed and pending ones, each from the newest; over all rounds: from
    the newest. `anchor` is the (status, id) of a trial: the page begins after it, or (way `up`) ends before it. Without
    an anchor it is the first page, or (way `up`) the last. Each row has the trial's state, the latest verdict's reward,
    outcome and tamper, and `turns` and `sampled` tokens.
    """
    ids = _ids(store, query, anchor, way, limit + 1)
    more = len(ids) > limit
    if way == "down":
        return Page(_rows(store, ids[:limit]), anchor is not None, more, anchor)
    rows = _rows(store, ids[::-1])
    before = (rows[0]["status"], rows[0]["id"]) if more else None
    return Page(rows[more:], more, anchor is not None, before)


def _ids(store: Store, query: TrialQuery, anchor: tuple[str, int] | None, way: Way, limit: int) -> list[int]:
    if query.round_id is None:
        return _ids_where(store, query, "", anchor[1] if anchor else None, way, limit)
    order = _ORDER if way == "down" else tuple(reversed(_ORDER))
    start = order.index(anchor[0]) if anchor else 0
    found: list[int] = []
    for position, status in enumerate(order[start:]):
        beyond = anchor[1] if anchor and position == 0 else None
        found += _ids_where(store, query, status, beyond, way, limit - len(found))
        if len(found) >= limit:
            break
    return found


def _ids_where(store: Store, query: TrialQuery, status: str, beyond: int | None, way: Way, limit: int) -> list[int]:
    conditions: list[str] = []
    params: list[Any] = []

    def add(condition: str, *values: Any) -> None:
        conditions.append(condition)
        params.extend(values)

    if query.round_id is not None:
        add("t.round_id = ? AND t.status = ?", query.round_id, status)
    if query.task:
        add("t.task_id = ?", query.task)
    if STATES[query.state]:
        add(f"({STATES[query.state]})")
    if query.text:
        add("instr(lower(t.task_id || ' ' || t.harness || ' ' || t.ending || ' ' || t.reason), lower(?))", query.text)
    if beyond is not None:
        add(f"t.id {'<' if way == 'down' else '>'} ?", beyond)
    join = f" LEFT JOIN verdicts v ON {IS_LATEST}" if query.state in _OF_VERDICTS else ""
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    order = "DESC" if way == "down" else "ASC"
    rows = store.rows(f"SELECT t.id FROM trials t{join}{where} ORDER BY t.id {order} LIMIT ?", [*params, limit])
    return [row["id"] for row in rows]


def _rows(store: Store, ids: Sequence[int]) -> list[Row]:
    marks = ",".join("?" * len(ids))
    rows = store.rows(
        "SELECT t.id, t.round_id, t.task_id, t.harness, t.sample, t.attempt, t.status, t.fault, t.ending, t.reason,"
        " t.seconds, t.started_at, t.summary ->> 'calls' AS turns, t.summary ->> 'sampled_tokens' AS sampled,"
        " v.reward, v.outcome, v.tamper, v.detail ->> 'reason' AS said"
        f" FROM trials t LEFT JOIN verdicts v ON {IS_LATEST} WHERE t.id IN ({marks})",
        list(ids),
    )
    for row in rows:
        if row["turns"] is None:
            row |= _so_far(store, row["id"])
    place = {id_: at for at, id_ in enumerate(ids)}
    return sorted(rows, key=lambda row: place[row["id"]])


def _so_far(store: Store, trial_id: int) -> Row:
    row = store.row(
        "SELECT count(*) AS turns, coalesce(sum(completion_tokens), 0) AS sampled FROM calls"
        " WHERE trial_id = ? AND kind != 'rejected'",
        (trial_id,),
    )
    assert row is not None
    return row


def trial_stamp(store: Store, trial_id: int) -> tuple[Any, ...]:
    """Changes whenever something is recorded about the trial that `trial_view.gather` shows."""
    row = store.row(
        "SELECT t.status, (SELECT count(*) FROM calls WHERE trial_id = t.id) AS calls,"
        " (SELECT count(*) FROM calls WHERE trial_id = t.id AND fate != 'delivered') AS fates,"
        " (SELECT max(id) FROM verdicts WHERE trial_id = t.id) AS verdict,"
        " (SELECT max(step) FROM train_steps) AS step FROM trials t WHERE t.id = ?",
        (trial_id,),
    )
    return tuple(row.values()) if row else ()


def submission(store: Store, trial_id: int) -> bytes | None:
    """The stored submission, for `lego.sandbox.submission.Submission.from_bytes`."""
    return store.value("SELECT submission FROM trials WHERE id = ?", (trial_id,))


@dataclass(frozen=True)
class Cell:
    """Trials of one task in one round: solved of graded of slots."""

    task_id: str
    round_id: int
    solved: int
    graded: int
    slots: int


def cells(store: Store, round_id: int, tasks: Sequence[str] | None = None) -> list[Cell]:
    """The round's cells of the task grid, of these tasks or of all, by task."""
    chosen = "" if tasks is None else f" AND t.task_id IN ({','.join('?' * len(tasks))})"
    return [
        Cell(row["task_id"], round_id, row["solved"], row["graded"], row["slots"])
        for row in store.rows(
            f"SELECT t.task_id, coalesce(sum({SOLVED}), 0) AS solved, count(v.reward) AS graded,"
            f" sum(t.attempt = 1) AS slots FROM trials t LEFT JOIN verdicts v ON t.status = 'finished' AND {IS_LATEST}"
            f" WHERE t.round_id = ?{chosen} GROUP BY t.task_id ORDER BY t.task_id",
            (round_id, *(tasks or ())),
        )
    ]


def grid_tasks(
    store: Store, round_ids: Sequence[int], *, text: str = "", offset: int = 0, limit: int = 100
) -> list[str]:
    """A page of the tasks of these rounds, by name; `text` is looked for in it, whatever its case."""
    marks = ",".join("?" * len(round_ids))
    rows = store.rows(
        f"SELECT DISTINCT task_id FROM round_tasks WHERE round_id IN ({marks})"
        " AND instr(lower(task_id), lower(?)) ORDER BY task_id LIMIT ? OFFSET ?",
        [*round_ids, text, limit, offset],
    )
    return [row["task_id"] for row in rows]


def count_grid_tasks(store: Store, round_ids: Sequence[int], *, text: str = "") -> int:
    marks = ",".join("?" * len(round_ids))
    return int(
        store.value(
            f"SELECT count(DISTINCT task_id) FROM round_tasks WHERE round_id IN ({marks})"
            " AND instr(lower(task_id), lower(?))",
            [*round_ids, text],
        )
    )


def provenance(store: Store) -> dict[str, str]:
    """Versions of lego and what it stands on, and its commit."""
    rows = store.rows("SELECT key, value FROM meta WHERE key LIKE 'version.%' OR key = 'git_commit' ORDER BY key")
    return {row["key"].removeprefix("version."): row["value"] for row in rows}


def last_step(store: Store) -> Row | None:
    """The newest training step, without its metrics."""
    return store.row(
        "SELECT step, kind, status, reason, policy_from, policy_to FROM train_steps ORDER BY step DESC LIMIT 1"
    )


def newest_policy(store: Store) -> int | None:
    return store.value("SELECT max(version) FROM policies")


def images_by_status(store: Store) -> dict[str, int]:
    rows = store.rows("SELECT status, count(*) AS n FROM images GROUP BY status")
    return {row["status"]: row["n"] for row in rows}


def task_digests(store: Store) -> dict[str, str]:
    """Task id -> the digest it was registered with."""
    return {row["id"]: row["digest"] for row in store.rows("SELECT id, digest FROM tasks")}
