"""A curve as inline SVG: a dot a point, a bar an interval; a line only between neighbours that were both recorded."""

from __future__ import annotations

from html import escape

from lego.report.curves import Curve, Point, extent, labels, number

WIDTH, HEIGHT = 420, 210
_RIGHT, _TOP, _BOTTOM = 12, 10, 28
_CHARACTER = 6.5
"""Width of one in the numbers at the left."""
_TICKS = 6


def chart(curve: Curve) -> str:
    """The picture; every point carries its numbers as a tooltip."""
    if not curve.points:
        return '<p class="soft">no finite value was recorded</p>'
    low, high = extent(curve)
    heights = [low + (high - low) * at / 4 for at in range(5)]
    numbers = labels(heights)
    left = round(max(58, 12 + _CHARACTER * max(map(len, numbers))))
    first, last = min(point.x for point in curve.points), max(point.x for point in curve.points)

    def across(x: float) -> float:
        span = last - first
        share = (x - first) / span if span else 0.5
        return round(left + 8 + share * (WIDTH - left - _RIGHT - 16), 1)

    def up(y: float) -> float:
        share = min(max((y - low) / (high - low), 0.0), 1.0)
        return round(HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM), 1)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(curve.title, quote=True)}">']
    for y, label in zip(heights, numbers, strict=True):
        parts.append(f'<line class="rule" x1="{left}" x2="{WIDTH - _RIGHT}" y1="{up(y)}" y2="{up(y)}"/>')
        parts.append(f'<text x="{left - 6}" y="{up(y) + 4}" text-anchor="end">{label}</text>')
    for tick in _ticks(curve.points):
        parts.append(f'<text x="{across(tick)}" y="{HEIGHT - 12}" text-anchor="middle">{tick}</text>')
    for one, other in zip(curve.points, curve.points[1:], strict=False):
        if other.x - one.x == 1:
            ends = f'x1="{across(one.x)}" y1="{up(one.y)}" x2="{across(other.x)}" y2="{up(other.y)}"'
            parts.append(f'<line class="curve" {ends}/>')
    for point in curve.points:
        x, y = across(point.x), up(point.y)
        if point.low is not None and point.high is not None:
            top, bottom = up(point.high), up(point.low)
            bar = f"M{x - 3} {top}h6M{x} {top}V{bottom}M{x - 3} {bottom}h6"
            parts.append(f'<path class="bar" d="{bar}"/>')
        radius = 3 if len(curve.points) <= 60 else 1.5
        parts.append(f'<circle cx="{x}" cy="{y}" r="{radius}"><title>{escape(_told(curve, point))}</title></circle>')
    parts.append(f'<text x="{WIDTH - _RIGHT}" y="{HEIGHT - 1}" text-anchor="end">{escape(curve.x)}</text></svg>')
    return "".join(parts)


def _ticks(points: tuple[Point, ...]) -> list[int]:
    """A few of the xs that were recorded, the first and the last among them."""
    xs = sorted({point.x for point in points})
    if len(xs) <= _TICKS:
        return xs
    return sorted({xs[round(at * (len(xs) - 1) / (_TICKS - 1))] for at in range(_TICKS)})


def _told(curve: Curve, point: Point) -> str:
    around = (
        f" [{number(point.low)} – {number(point.high)}]" if point.low is not None and point.high is not None else ""
    )
    return f"{curve.x} {point.x}: {number(point.y)}{around} {point.note}".rstrip()
