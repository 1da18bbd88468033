"""Everything the report says, as plain data read from the run database alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from lego.report.change import Change, change, told
from lego.report.curves import Curve, Curves, config_of
from lego.rundb import catalogue, training, views
from lego.rundb.signatures import look
from lego.rundb.store import Row, Store, now
from lego.rundb.views import Cell, RoundView

MOST_CELLS = 20_000
"""Cells of one task grid; beyond that only the newest rounds are shown, and the report says so."""


@dataclass(frozen=True)
class Grid:
    """kind of rounds; `rounds` shown of `of`; rows by task, each with one cell (or None) a round."""

    kind: str
    rounds: list[RoundView]
    of: int
    rows: list[tuple[str, list[Cell | None]]]


@dataclass(frozen=True)
class Report:
    name: str
    at: str
    rounds: list[RoundView]
    curves: list[Curve]
    grids: list[Grid]
    steps: list[Row]
    evals: list[Row]
    change: Change | None
    tasks: dict[str, int]
    policies: int
    wrong: list[str]
    config: dict[str, Any]
    provenance: dict[str, str]


def gather(store: Store, name: str) -> Report:
    with views.snapshot(store):
        rounds = [views.counted(store, head) for head in views.round_heads(store)]
        return Report(
            name=name,
            at=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now())),
            rounds=rounds,
            curves=Curves(store).all(rounds),
            grids=[grid for kind in ("eval", "train", "demo") if (grid := _grid(store, rounds, kind)).rounds],
            steps=training.steps(store),
            evals=training.evals(store),
            change=change(store),
            tasks={split: len(catalogue.task_ids(store, split)) for split in ("train", "eval")},  # type: ignore[arg-type]
            policies=len(catalogue.policies(store)),
            wrong=look(store),
            config=config_of(store),
            provenance=views.provenance(store),
        )


def _grid(store: Store, rounds: list[RoundView], kind: str) -> Grid:
    of_kind = [round_ for round_ in rounds if round_.kind == kind]
    shown: list[RoundView] = []
    cells: dict[str, dict[int, Cell]] = {}
    for round_ in reversed(of_kind):
        found = views.cells(store, round_.id)
        tasks = len(cells.keys() | {cell.task_id for cell in found})
        if shown and tasks * (len(shown) + 1) > MOST_CELLS:
            break
        shown.insert(0, round_)
        for cell in found:
            cells.setdefault(cell.task_id, {})[round_.id] = cell
    rows = [(task, [cells[task].get(round_.id) for round_ in shown]) for task in sorted(cells)]
    return Grid(kind, shown, len(of_kind), rows)


def as_data(report: Report) -> dict[str, Any]:
    """The report for machines."""
    return {
        "name": report.name,
        "at": report.at,
        "tasks": report.tasks,
        "policies": report.policies,
        "wrong": report.wrong,
        "rounds": [{key: value for key, value in vars(round_).items() if key != "owners"} for round_ in report.rounds],
        "curves": [{**vars(curve), "points": [vars(point) for point in curve.points]} for curve in report.curves],
        "steps": [
            {key: step[key] for key in ("step", "kind", "status", "reason", "policy_from", "policy_to", "metrics")}
            for step in report.steps
        ],
        "evals": report.evals,
        "change": told(report.change) if report.change else None,
        "config": report.config,
        "provenance": report.provenance,
    }
