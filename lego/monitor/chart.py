"""A curve in characters: a dot a point, a bar an interval, and nothing in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from lego.report.curves import Curve, Point, extent, labels

DOT, BAR, HIGH, LOW = "●", "│", "┬", "┴"
_SPARKS = "▁▂▃▄▅▆▇█"


def chart(curve: Curve, width: int, height: int) -> list[str]:
    """At most `height` (5 or more) lines of `width` characters: the plot, its axis and the numbers on it.

    More points than columns: each column keeps its latest point, and the last line says how many are not shown.
    """
    if not curve.points:
        return ["no finite value was recorded"]
    low, high = extent(curve)
    # An odd number of rows, so that the middle has a row of its own.
    tall = (height - 3) // 2 * 2 + 1
    middle = tall // 2
    beside = dict(zip((0, middle, tall - 1), labels((high, (low + high) / 2, low)), strict=True))
    margin = max(len(label) for label in beside.values()) + 1
    columns = width - margin - 1
    rows = [[" "] * columns for _ in range(tall)]
    first, last = min(point.x for point in curve.points), max(point.x for point in curve.points)
    shown = _by_column(curve.points, first, last, columns)
    for column, point in shown.items():
        _draw(rows, column, point, low, high)
    out = [f"{beside.get(at, ''):>{margin - 1}} ┤{''.join(row)}".rstrip() for at, row in enumerate(rows)]
    out.append(" " * margin + "└" + "─" * columns)
    left, right = f"{curve.x} {first}", str(last) if last > first else ""
    hidden = len(curve.points) - len(shown)
    between = f"({hidden} share a column)" if hidden else ""
    room = columns - len(left) - len(right)
    out.append(" " * (margin + 1) + left + (between if len(between) < room else "").center(room) + right)
    return out


def _by_column(points: Sequence[Point], first: int, last: int, columns: int) -> dict[int, Point]:
    span = max(last - first, 1)
    return {round((point.x - first) * (columns - 1) / span): point for point in points}


def _draw(rows: list[list[str]], column: int, point: Point, low: float, high: float) -> None:
    def row_of(value: float) -> int:
        share = (value - low) / (high - low)
        return len(rows) - 1 - round(min(max(share, 0.0), 1.0) * (len(rows) - 1))

    here = row_of(point.y)
    if point.low is not None and point.high is not None:
        top, bottom = row_of(point.high), row_of(point.low)
        for row in range(top, bottom + 1):
            rows[row][column] = BAR
        rows[top][column], rows[bottom][column] = HIGH, LOW
    rows[here][column] = DOT


def spark(values: Sequence[float | None], width: int) -> str:
    """The last `width` values of [0, 1], one character each; a missing one is a space."""
    return "".join(
        " " if value is None else _SPARKS[min(int(value * len(_SPARKS)), len(_SPARKS) - 1)] for value in values[-width:]
    )


def bar(done: int, total: int, width: int) -> str:
    """Progress in `width` characters; full only when everything is done."""
    filled = width * done // total if total else 0
    return "━" * filled + "─" * (width - filled)
