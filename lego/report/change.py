"""Whether the held-out rate changed over a run: the newest evaluation beside the first that was done alike."""

from __future__ import annotations

from dataclasses import dataclass

from lego.evaluation import sign_test
from lego.report.curves import number, outcomes, way_of
from lego.rundb import training, views
from lego.rundb.store import Row, Store

_CHANCE = 0.05
"""The p-value from which on a difference is not called a rise or a fall."""


@dataclass(frozen=True)
class Change:
    """Two evaluations of the same tasks, done the same way. before, after: rows of `training.evals`.

    better, worse: tasks that `after` solves more often, and less often. p: of the exact sign test over these.
    """

    way: str
    before: Row
    after: Row
    better: int
    worse: int
    p: float


def change(store: Store) -> Change | None:
    """None where no two policies were evaluated alike."""
    evals = training.evals(store)
    if not evals:
        return None
    after, way = evals[-1], way_of(evals[-1]["detail"])
    cells = views.cells(store, after["round_id"])
    for before in evals:
        if before["policy_version"] == after["policy_version"] or way_of(before["detail"]) != way:
            continue
        earlier = views.cells(store, before["round_id"])
        if [cell.task_id for cell in earlier] == [cell.task_id for cell in cells]:
            was, now = (_rates(outcomes(found)) for found in (earlier, cells))
            both = was.keys() & now.keys()
            better, worse = sum(now[t] > was[t] for t in both), sum(now[t] < was[t] for t in both)
            return Change(way, before, after, better, worse, sign_test(better, worse))
    return None


def _rates(found: dict[str, list[bool]]) -> dict[str, float]:
    return {task: sum(solved) / len(solved) for task, solved in found.items()}


def told(change: Change) -> str:
    """The change in one sentence, and whether chance alone explains it."""
    before, after = _rate(change.before), _rate(change.after)
    if change.p >= _CHANCE:
        what = f"no change that is more than chance, {before}, then {after}"
    elif change.better > change.worse:
        what = f"rose from {before} to {after}"
    else:
        what = f"fell from {before} to {after}"
    return (
        f"held out ({change.way}): {what}; {_tasks(change.better)} solved more often, {change.worse} less often,"
        f" p={number(change.p)}"
    )


def _rate(row: Row) -> str:
    return f"{row['rate']:.2f} [{row['low']:.2f}-{row['high']:.2f}] (policy {row['policy_version']})"


def _tasks(count: int) -> str:
    return f"{count} task{'s' if count != 1 else ''}"
