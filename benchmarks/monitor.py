"""What a monitor costs the run it watches.

Scripted trials as in `benchmarks.trials`, in real sandboxes, with `lego monitor` open on them in a terminal of 80x24,
and without, in turn. Each pair of turns gives a ratio of its own; their spread says how much of it is the machine's.
Then the monitor stays open while nothing is written.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.scene import open_scene
from benchmarks.terminal import InTerminal
from benchmarks.trials import Sides

TRIALS, AT_ONCE = 24, 4
PAIRS, BUDGET = 5, 240.0
"""Pairs of turns, and the seconds after which no further pair begins, three at least."""
LEAST_PAIRS = 3
IDLE = 60.0
PATIENCE = 240.0
RUNNING_OR_NOT = "●○"
"""One of these stands before what runs now, and nowhere else on the first screen."""


def watch(config: Path) -> InTerminal:
    """A monitor of that run that has drawn its first screen."""
    command = (Path(sys.executable).with_name("lego"), "monitor", "-c", config)
    monitor = InTerminal(command, config.parent)
    end = time.monotonic() + PATIENCE
    while not any(mark in monitor.said for mark in RUNNING_OR_NOT):
        if time.monotonic() > end or monitor.process.poll() is not None:
            monitor.close()
            raise RuntimeError(f"the monitor showed nothing: {monitor.said[-500:]}")
        time.sleep(0.05)
    return monitor


async def measure() -> list[Measure]:
    with tempfile.TemporaryDirectory(prefix="lego-bench-") as folder:
        async with open_scene(Path(folder)) as (workshop, paths):
            sides, config = Sides(workshop, paths), Path(folder) / "bench.yaml"

            async def turn() -> float:
                """Trials a minute."""
                began = time.perf_counter()
                await sides.scripted(TRIALS, AT_ONCE)
                return 60 * TRIALS / (time.perf_counter() - began)

            await turn()
            with_, without, shares = [], [], []
            end = time.monotonic() + BUDGET
            for pair in range(PAIRS):
                if pair >= LEAST_PAIRS and time.monotonic() > end:
                    break
                # Which of them goes first takes turns as well.
                for watched in (True, False) if pair % 2 else (False, True):
                    if not watched:
                        without.append(await turn())
                        continue
                    with await asyncio.to_thread(watch, config) as monitor:
                        cpu, began = monitor.cpu(), time.monotonic()
                        with_.append(await turn())
                        shares.append((monitor.cpu() - cpu) / (time.monotonic() - began))
            with await asyncio.to_thread(watch, config) as monitor:
                await asyncio.sleep(5)
                cpu = monitor.cpu()
                await asyncio.sleep(IDLE)
                idle = (monitor.cpu() - cpu) / IDLE
    ratios = [one / other for one, other in zip(with_, without, strict=True)]
    spread = f"pairs {min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"
    return [
        Measure(
            f"scripted trials, {AT_ONCE} at once, watched; {spread}", "trials/min", statistics.median(with_),
            statistics.median(without), "the same, unwatched", "ratio 1",
        ),
        Measure("the monitor's CPU: while the run works, idle", "% of a core", 100 * statistics.median(shares),
                100 * idle, "idle", "at most 5"),
    ]  # fmt: skip


def run() -> list[Measure]:
    return asyncio.run(measure())
