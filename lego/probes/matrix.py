"""What the check of a harness came to, as a row, a table and lines of what does not hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lego.probes.proof import DECLARED, Captured


@dataclass(frozen=True)
class Report:
    """One scenario in one harness. `failures`: every must-hold that does not hold, or why nothing could be run.

    outcome: the verifier's word ("" = none). log: what the harness printed and every turn, as a file.
    """

    harness: str
    version: str
    scenario: str
    outcome: str = ""
    captured: Captured | None = None
    failures: tuple[str, ...] = ()
    log: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.failures

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


COLUMNS = (
    "harness", "version", "scenario", "solved", "calls", "roots", "forks", "drift", "sampled", "in loss", "left out",
    "max Δ log p", "retokenised", "spliced", "rerendered", "holds",
)  # fmt: skip
_NUMBERS = COLUMNS[4:10] + COLUMNS[11:15]


def must_hold(captured: Captured, bound: float) -> list[str]:
    """What is wrong with what was captured, one line each. `bound`: nats that arithmetic alone may cost."""
    wrong = list(captured.broken)
    if captured.retokenised:
        wrong.append(f"{captured.retokenised} tokens under the mask are not what the policy was made to say there")
    declared = sum(count for reason, count in captured.excluded.items() if reason in DECLARED)
    if captured.in_loss + declared != captured.sampled:
        left = ", ".join(f"{count} {reason}" for reason, count in captured.excluded.items()) or "none named"
        wrong.append(f"{captured.sampled} tokens sampled, {captured.in_loss} in the loss; left out: {left}")
    if not captured.gap <= bound:
        wrong.append(f"the trainer's log-probs differ by up to {captured.gap:.2g} nats, over {bound:g}")
    return wrong


def cells(report: Report) -> list[str]:
    """The row of `report`, one text a column."""
    captured = report.captured
    if captured is None:
        numbers = ["–"] * 11
    else:
        left = ", ".join(f"{count} {reason}" for reason, count in captured.excluded.items()) or "0"
        numbers = [
            str(captured.calls), str(captured.roots), str(captured.forks), str(captured.drifts),
            str(captured.sampled), str(captured.in_loss), left, f"{captured.gap:.1e}", str(captured.retokenised),
            str(captured.spliced), str(captured.rerendered),
        ]  # fmt: skip
    solved = {"passed": "yes", "": "–"}.get(report.outcome, report.outcome)
    return [report.harness, report.version, report.scenario or "–", solved, *numbers, "yes" if report.ok else "NO"]


def markdown(reports: Sequence[Report]) -> str:
    """All reports as one Markdown table, its columns padded so that it also reads as text."""
    rows = [list(COLUMNS), *(cells(report) for report in reports)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(COLUMNS))]
    lines = []
    for row in rows:
        padded = (
            text.rjust(width) if name in _NUMBERS else text.ljust(width)
            for text, width, name in zip(row, widths, COLUMNS, strict=True)
        )
        lines.append("| " + " | ".join(padded) + " |")
    rule = ("-" * (width - 1) + (":" if name in _NUMBERS else "-") for width, name in zip(widths, COLUMNS, strict=True))
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return "\n".join(lines)


def words(report: Report) -> list[str]:
    """A report for a reader: a line of what was captured, a line for each failure."""
    captured = report.captured
    head = f"{report.harness} {report.version}".strip() + (f" · {report.scenario}" if report.scenario else "")
    lines = [f" {'✓' if report.ok else '✗'} {head}"]
    if captured is not None:
        left = "".join(f", {count} {reason}" for reason, count in captured.excluded.items())
        lines += [
            f"     {report.outcome or 'no verdict'}; {captured.calls} calls: {captured.roots} roots, "
            f"{captured.forks} forks, {captured.drifts} drift events; longest prompt {captured.longest} tokens",
            f"     {captured.sampled} tokens sampled, {captured.in_loss} in the loss{left}; "
            f"max |Δ log p| {captured.gap:.1e}; {captured.retokenised} retokenised under the mask",
            f"     replies in rendered history: {captured.spliced} by their raw ids, {captured.rerendered} from text",
        ]
    lines += [f"     {failure}" for failure in report.failures]
    if report.failures and report.log:
        lines.append(f"     log: {report.log}")
    return lines
