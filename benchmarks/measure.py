"""One number beside its peer's, taken in the same run, and how a list of them is shown."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Clock = Callable[[], float]


@dataclass(frozen=True)
class Measure:
    """`ours` and `peer` in `unit`; `beside` names the peer. `goal` is said in words, "" where there is none."""

    what: str
    unit: str
    ours: float
    peer: float
    beside: str
    goal: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.peer if self.peer else float("inf")

    @property
    def added(self) -> float:
        return self.ours - self.peer

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": self.ratio, "added": self.added}


def interleaved(
    sides: Mapping[str, Callable[[], float]], repeats: int, budget: float = 90.0, clock: Clock = time.monotonic
) -> dict[str, float]:
    """The median of each side's numbers, the sides taking turns so that what else runs here hits them alike.

    Every side runs once more before the first counted turn. After `budget` seconds no further turn begins, so that a
    busy machine costs repetitions and not hours.
    """
    end = clock() + budget
    for side in sides.values():
        side()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(repeats):
        if turn and clock() > end:
            break
        for name, side in sides.items():
            taken[name].append(side())
    return {name: statistics.median(numbers) for name, numbers in taken.items()}


def show(name: str, measures: Sequence[Measure]) -> None:
    """Print a small table."""
    table = Table(title=name, title_justify="left", box=None, pad_edge=False)
    for heading in ("", "ours", "peer", "ratio", "added"):
        table.add_column(heading, justify="left" if not heading else "right", no_wrap=True)
    for heading in ("unit", "beside", "goal"):
        table.add_column(heading, no_wrap=True)
    for one in measures:
        ratio = f"{one.ratio:.2f}" if one.peer else "-"
        numbers = _short(one.ours), _short(one.peer), ratio, f"{'+' * (one.added > 0)}{_short(one.added)}"
        table.add_row(one.what, *numbers, one.unit, one.beside, one.goal)
    Console(width=max(Console().width, 140)).print(table)


def _short(number: float) -> str:
    if number == 0:
        return "0"
    return f"{number:.0f}" if abs(number) >= 100 else f"{number:.3g}"
