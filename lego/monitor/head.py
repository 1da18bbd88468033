"""The lines at the top of the monitor: where the run stands. Pure."""

from __future__ import annotations

from lego.monitor.chart import bar, spark
from lego.monitor.feed import Snapshot
from lego.rundb.views import RoundView

_SPARK = 12


def head(name: str, wanted: int, snapshot: Snapshot, width: int, at: float) -> list[str]:
    """Three lines of at most `width` characters: the run and what runs now, its stages, the round's progress."""
    return [_fit(*pair, width) for pair in (_run(name, wanted, snapshot, at), _stages(snapshot), _round(snapshot))]


def _fit(left: str, right: str, width: int) -> str:
    gap = width - len(left) - len(right)
    if gap < 2:
        return left if len(left) <= width else left[: width - 1] + "…"
    return left + " " * gap + right


def _run(name: str, wanted: int, snapshot: Snapshot, at: float) -> tuple[str, str]:
    trained = [round_.ordinal for round_ in snapshot.rounds if round_.kind == "train"]
    parts = [f" {name}"]
    if trained:
        parts.append(f"round {trained[-1]}/{max(wanted, trained[-1])}")
    if snapshot.policy is not None:
        parts.append(f"policy {snapshot.policy}")
    running = snapshot.running(at)
    parts.append(f"● {' + '.join(running)}" if running else "○ nothing runs")
    newest = snapshot.evals[-1] if snapshot.evals else None
    held_out = f"eval v{newest['policy_version']} {newest['rate']:.2f} {interval(newest)} " if newest else ""
    return "  ".join(parts), held_out


def interval(row: dict[str, float]) -> str:
    return f"[{row['low']:.2f}-{row['high']:.2f}]"


def _stages(snapshot: Snapshot) -> tuple[str, str]:
    images = snapshot.images
    parts = []
    if images:
        failed = f" ({images['failed']} failed)" if images.get("failed") else ""
        parts.append(f"images {images.get('built', 0) + images.get('cached', 0)}{failed}")
    round_ = snapshot.current
    if round_:
        parts.append(f"rollout {round_.done}/{round_.slots}")
        parts.append(f"verify {round_.verified}/{round_.finished}")
    if snapshot.step:
        parts.append(f"{snapshot.step['kind']} step {snapshot.step['step']} {snapshot.step['status']}")
    parts.append(f"evals {len(snapshot.evals)}")
    return " " + "   ".join(parts), ""


def _round(snapshot: Snapshot) -> tuple[str, str]:
    round_ = snapshot.current
    if round_ is None:
        return " no round was opened yet", ""
    percent = 100 * round_.done // round_.slots if round_.slots else 0
    parts = [f" {label(round_)} {bar(round_.done, round_.slots, 16)} {percent}%"]
    for count, word in ((round_.running, "running"), (round_.infra, "infra"), (round_.tampered, "tamper")):
        if count:
            parts.append(f"{count} {word}")
    rates = [other.rate for other in snapshot.rounds if other.kind == round_.kind]
    solved = f"solved {round_.rate:.2f} {spark(rates, _SPARK)} " if round_.rate is not None else ""
    return "  ".join(parts), solved


def label(round_: RoundView) -> str:
    return f"{round_.kind} {round_.ordinal}"


def compact(count: int | None) -> str:
    """A count in at most five characters."""
    if count is None:
        return "–"
    for size, unit in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return f"{count / size:.1f}{unit}" if count < 100 * size else f"{count // size}{unit}"
    return str(count)
