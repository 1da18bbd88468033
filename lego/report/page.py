"""The report as one HTML file: no script, nothing fetched, readable in print and without colour. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from lego.metrics import METRICS
from lego.plain import one_line
from lego.report.change import told
from lego.report.curves import Curve, number, way_of
from lego.report.gather import Grid, Report
from lego.report.svg import chart
from lego.rundb.store import Row
from lego.rundb.views import Cell, RoundView

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 70rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #999; }
h3 { font-size: 1rem; margin: 1rem 0 .3rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .55rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap; }
th { border-bottom: 1px solid #666; } td.text, th.text { text-align: left; white-space: normal; }
td.text { min-width: 4rem; }
.soft { color: #555; } .wide { overflow-x: auto; } code { font: .85em ui-monospace, monospace;
  overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(19rem, 100%), 1fr)); gap: .8rem 1.2rem; }
figure { margin: 0; break-inside: avoid; }
figcaption { font-weight: 600; font-size: .9rem; } figcaption span { display: block; font-weight: 400; color: #555; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: #333; }
.rule { stroke: #ddd; } .curve { stroke: #1f5fa8; stroke-width: 1.5; } .bar { stroke: #1f5fa8; fill: none; }
circle { fill: #1f5fa8; }
.beside { column-gap: 1.5rem; } .beside thead { display: table-header-group; break-inside: avoid; }
.grid tr { break-inside: avoid; } .grid td { text-align: center; padding: .1rem .35rem; border: 1px solid #ddd; }
.s0 { background: #fff; } .s1 { background: #e4f0e4; } .s2 { background: #c3e0c3; } .s3 { background: #8fc98f; }
.s4 { background: #4f9e57; color: #fff; }
@media print { body { margin: 0; max-width: none; font-size: 10pt; } h2, h3, h3 + p { break-after: avoid; }
  tr { break-inside: avoid; } thead { display: table-header-group; } .wide { overflow: visible; }
  table { font-size: 7.5pt; } .charts { grid-template-columns: repeat(3, 1fr); } figcaption { font-size: 7.5pt; }
  .s1, .s2, .s3, .s4 { color: #000; background: none; } .s4 { font-weight: 700; } }
"""

_NAME, _CELL = 12, 2.6
"""Room that a task's name and a cell of the grid take, in rem: as many columns of rows as fit stand side by side."""


def page(report: Report) -> str:
    """The whole file. Everything that was recorded is escaped; nothing in it can act."""
    sections = [
        _section("What looks wrong", _list(report.wrong) or "<p>Nothing is recognised as wrong.</p>"),
        _section("Held-out evaluations", _evals(report)),
        _section("Curves", _charts(report.curves)),
        _section("Rounds", _rounds(report.rounds)),
        _section("Proof: what is trained is what was sampled", _proof(report.steps)),
        _section("Task grid", "".join(_grid(grid) for grid in report.grids) or _none("no round was opened")),
        _section(
            "Config", _pairs((key, json.dumps(value, ensure_ascii=False)) for key, value in report.config.items())
        ),
        _section("Made with", _pairs(report.provenance.items())),
    ]
    title = f"{_e(report.name)}: report of the run"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>{_head(report)}"
        + "".join(sections)
        + "</body></html>\n"
    )


def _e(value: object) -> str:
    return escape(one_line(str(value)))


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_e(title)}</h2>{body}</section>"


def _none(text: str) -> str:
    return f'<p class="soft">{_e(text)}</p>'


def _list(items: Iterable[str]) -> str:
    rows = "".join(f"<li>{_e(item)}</li>" for item in items)
    return f"<ul>{rows}</ul>" if rows else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: frozenset[int] = frozenset({0})) -> str:
    """heads and cells are HTML; columns in `texts` are left-aligned."""

    def cell(tag: str, at: int, inner: str) -> str:
        return f'<{tag} class="text">{inner}</{tag}>' if at in texts else f"<{tag}>{inner}</{tag}>"

    head = "".join(cell("th", at, text) for at, text in enumerate(heads))
    body = "".join(f"<tr>{''.join(cell('td', at, text) for at, text in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _head(report: Report) -> str:
    open_ = [round_ for round_ in report.rounds if round_.open]
    parts = [
        f"{len(report.rounds)} rounds" + (f", {len(open_)} still open" if open_ else ""),
        f"{sum(round_.finished for round_ in report.rounds)} finished trials",
        f"{sum(step['status'] == 'done' for step in report.steps)} steps",
        f"{report.policies} policies",
        f"{report.tasks['train']} training and {report.tasks['eval']} held-out tasks",
        f"written {report.at}",
    ]
    return f'<p class="soft">{_e(" · ".join(parts))}</p>'


def _charts(curves: Sequence[Curve]) -> str:
    figures = []
    for curve in curves:
        unit = f" ({curve.unit})" if curve.unit else ""
        left_out = f"; {curve.left_out} recorded values are no finite numbers: not drawn" if curve.left_out else ""
        caption = f"{_e(curve.title + unit)}<span>{_e(curve.definition + left_out)}</span>"
        figures.append(f"<figure><figcaption>{caption}</figcaption>{chart(curve)}</figure>")
    if not figures:
        return _none("nothing was recorded yet")
    note = "A dot is a recorded value, a bar its 95 % interval, a line joins recorded neighbours only."
    return f'{_none(note)}<div class="charts">{"".join(figures)}</div>'


def _evals(report: Report) -> str:
    if not report.evals:
        return _none("none yet")
    rows = [
        (
            str(row["policy_version"]), f"{row['rate']:.3f}", f"{row['low']:.3f} – {row['high']:.3f}",
            f"{row['passed']} of {row['n']}", _e(way_of(row["detail"])),
        )
        for row in report.evals
    ]  # fmt: skip
    said = f"<p>{_e(told(report.change))}</p>" if report.change else ""
    return said + _table(("policy", "pass@1", "95 % interval", "trials solved", "how"), rows, frozenset({4}))


def _rounds(rounds: Sequence[RoundView]) -> str:
    if not rounds:
        return _none("no round was opened yet")
    heads = (
        "round", "policy", "state", "slots", "done", "verified", "solved", "rate", "mean reward", "tamper", "broken",
        "infra faults", "minutes",
    )  # fmt: skip
    return _table(heads, [_round(round_) for round_ in rounds], frozenset({0, 2}))


def _round(round_: RoundView) -> tuple[str, ...]:
    minutes = "–" if round_.closed_at is None else f"{(round_.closed_at - round_.opened_at) / 60:.1f}"
    state = "open" if round_.open else f"closed: {round_.reason}" if round_.reason else "closed"
    counts = (round_.slots, round_.done, round_.verified, round_.solved)
    return (
        _e(f"{round_.kind} {round_.ordinal}"),
        str(round_.policy),
        _e(state),
        *(str(count) for count in counts),
        "–" if round_.rate is None else f"{round_.rate:.3f}",
        "–" if round_.reward is None else f"{round_.reward:.3f}",
        *(str(count) for count in (round_.tampered, round_.broken, round_.infra)),
        minutes,
    )


def _proof(steps: Sequence[Row]) -> str:
    names = [name for name in METRICS if name.startswith("proof/") and any(name in step["metrics"] for step in steps)]
    extra = [name for name in ("step/grad_norm", "step/dropped") if any(name in step["metrics"] for step in steps)]
    if not steps:
        return _none("no step was taken yet")
    shown = [*names, *extra]
    rows = [
        (
            str(step["step"]), _e(step["kind"]), _e(step["status"] + (f": {step['reason']}" if step["reason"] else "")),
            *(_value(step["metrics"].get(name)) for name in shown),
        )
        for step in steps
    ]  # fmt: skip
    table = _table(("step", "kind", "status", *(_e(_short(name)) for name in shown)), rows, frozenset({1, 2}))
    meanings = _list(f"{_short(name)}: {METRICS[name].definition}" for name in shown)
    return f"{table}{meanings}" if names else _none("no step that needs a proof was taken yet") + table


def _short(metric: str) -> str:
    return metric.rpartition("/")[2]


def _value(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6f}" if isinstance(value, float) and 0.9 < value < 1 else number(float(value))


def _grid(grid: Grid) -> str:
    heads = "".join(f"<th>{round_.ordinal}</th>" for round_ in grid.rounds)
    rows = "".join(
        f'<tr><td class="text">{_e(task)}</td>{"".join(_cell(cell) for cell in cells)}</tr>'
        for task, cells in grid.rows
    )
    left_out = f" The newest {len(grid.rounds)} of {grid.of} rounds." if len(grid.rounds) < grid.of else ""
    return (
        f"<h3>{_e(grid.kind)} rounds</h3>"
        + _none(f"Solved of graded trials, a column a round; … where some are not graded yet.{left_out}")
        + f'<div class="wide beside" style="column-width:{_NAME + _CELL * len(grid.rounds)}rem">'
        + f'<table class="grid"><thead><tr><th class="text">task</th>{heads}</tr></thead>'
        + f"<tbody>{rows}</tbody></table></div>"
    )


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "<td></td>"
    shade = 0 if not cell.solved else min(1 + 3 * cell.solved // cell.graded, 4)
    return f'<td class="s{shade}">{cell.solved}/{cell.graded}{"…" if cell.graded < cell.slots else ""}</td>'


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = [(f"<code>{_e(key)}</code>", f"<code>{_e(value)}</code>") for key, value in pairs]
    return _table(("key", "value"), rows, frozenset({0, 1})) if rows else _none("nothing was recorded")
