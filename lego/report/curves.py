"""What is drawn: series of recorded numbers. A point is a row of the database; nothing is filled in between."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lego.evaluation import solve_rate
from lego.metrics import METRICS
from lego.rundb import meta, training, views
from lego.rundb.store import Store
from lego.rundb.views import Cell, RoundView


@dataclass(frozen=True)
class Point:
    """y at x, within [low, high] where an interval is known; `note` says what it is over."""

    x: int
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Curve:
    """x is a `policy` version, a `round` or a `step`. unit and definition are those of the metric.

    rate: values are proportions, drawn from 0 to 1. left_out: recorded values that are no finite numbers.
    """

    name: str
    title: str
    x: str
    points: tuple[Point, ...]
    unit: str = ""
    definition: str = ""
    rate: bool = False
    left_out: int = 0


class Curves:
    """The curves of a run. What was counted of closed rounds is kept, so that asking again is cheap."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rounds: dict[tuple[int, int], Point | None] = {}

    def all(self, rounds: Iterable[RoundView]) -> list[Curve]:
        """Held-out rates, one curve a way of evaluating; the training rounds' solve rate; every recorded metric."""
        found = [*_evals(self._store), self._solved(rounds), *_metrics(self._store)]
        return [curve for curve in found if curve.points or curve.left_out]

    def _solved(self, rounds: Iterable[RoundView]) -> Curve:
        points = [self._of_round(round_) for round_ in rounds if round_.kind == "train" and round_.verified]
        return Curve(
            name="rollout/solved",
            title="solved in training",
            x="round",
            points=tuple(point for point in points if point),
            definition="mean over a round's tasks of the fraction of graded trials that solve it, 95 % interval",
            rate=True,
        )

    def _of_round(self, round_: RoundView) -> Point | None:
        key = (round_.id, round_.verified)
        if round_.open or key not in self._rounds:
            rate = solve_rate(outcomes(views.cells(self._store, round_.id)))
            note = f"{round_.solved} of {round_.verified} trials, {rate.tasks} tasks, policy {round_.policy}"
            note += " (round still open)" if round_.open else ""
            self._rounds[key] = Point(round_.ordinal, rate.mean, rate.low, rate.high, note) if rate.tasks else None
        return self._rounds[key]


def outcomes(cells: Iterable[Cell]) -> dict[str, list[bool]]:
    """Task -> one bool a graded trial, as `lego.evaluation.solve_rate` takes them."""
    return {cell.task_id: [True] * cell.solved + [False] * (cell.graded - cell.solved) for cell in cells if cell.graded}


def _evals(store: Store) -> list[Curve]:
    ways: dict[str, list[Point]] = defaultdict(list)
    for row in training.evals(store):
        note = f"{row['passed']} of {row['n']} trials"
        ways[way_of(row["detail"])].append(Point(row["policy_version"], row["rate"], row["low"], row["high"], note))
    metric = METRICS["eval/pass@1"]
    return [
        Curve(f"eval/pass@1 {way}", f"held out, {way}", "policy", tuple(points), metric.unit, metric.definition, True)
        for way, points in ways.items()
    ]


def way_of(detail: dict[str, Any]) -> str:
    """How an evaluation was done: only evaluations done alike are one curve."""
    temperature, history = detail.get("temperature"), detail.get("history", "?")
    how = "greedy" if temperature == 0 else f"T {temperature:g}" if temperature is not None else "T ?"
    return f"{how}, {history}, {detail.get('tasks_asked', '?')} tasks"


def _metrics(store: Store) -> list[Curve]:
    values: dict[str, list[tuple[int, Any, str]]] = defaultdict(list)
    for step in training.steps(store):
        for name, value in step["metrics"].items():
            values[name].append((step["step"], value, f"{step['kind']} step, {step['status']}"))
    known = {name: at for at, name in enumerate(METRICS)}
    curves = []
    for name in sorted(values, key=lambda name: (known.get(name, len(known)), name)):
        metric = METRICS.get(name)
        points = tuple(Point(step, float(value), note=note) for step, value, note in values[name] if _finite(value))
        curves.append(
            Curve(
                name,
                name,
                "step",
                points,
                metric.unit if metric else "",
                metric.definition if metric else "",
                left_out=len(values[name]) - len(points),
            )  # fmt: skip
        )
    return curves


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


_NOISE = 1e-6
"""Relative to their size, values closer together than this are drawn as equal."""


def extent(curve: Curve) -> tuple[float, float]:
    """The range of y to draw, never empty: 0 to 1 for rates, else what the points and their intervals span."""
    if curve.rate:
        return 0.0, 1.0
    values = [value for point in curve.points for value in (point.y, point.low, point.high) if value is not None]
    low, high = min(values), max(values)
    if high - low <= _NOISE * max(abs(low), abs(high)):
        pad = abs(low) / 100
        return (low - pad, high + pad) if pad else (0.0, 1.0)
    return low, high


def labels(values: Sequence[float]) -> list[str]:
    """Numbers along an axis: as short as `number` makes them, longer only where two would read the same."""
    for digits in range(4, 18):
        found = [number(value, digits) for value in values]
        if len(set(found)) == len(set(values)):
            break
    return found


def number(value: float, digits: int = 4) -> str:
    """A number as people read it, to so many significant digits; six decimals just below 1, where the proofs are."""
    if 0.99 <= abs(value) < 1:
        return f"{value:.{digits + 2}f}".rstrip("0").rstrip(".")
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}g}" if abs(value) < 1e4 else f"{value:,.{digits - 4}f}"
    return f"{value:.{digits - 3}e}"


def config_of(store: Store) -> dict[str, Any]:
    """The run's config as recorded: dotted key -> value."""
    return json.loads(meta.get(store, "config") or "{}")
