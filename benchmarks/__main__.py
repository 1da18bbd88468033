"""Runs benchmarks and prints each one's numbers beside its peers': `python -m benchmarks [NAME…] [--json]`."""

from __future__ import annotations

import argparse
import importlib
import json
import os

NAMES = (
    "proxy", "long_trial", "engine", "sandbox", "images", "injected", "store", "trials", "verify", "grade", "monitor",
    "trainer",
)  # fmt: skip
"""Modules of this package, each with `run() -> list[Measure]`."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(NAMES)}; all of them by default")
    parser.add_argument("--json", action="store_true", help="one JSON object, name -> list of numbers")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}: choose from {', '.join(NAMES)}")
    # Read when torch loads; threads that spin while they wait would be measured too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    results = {}
    for name in arguments.names or NAMES:
        measures = importlib.import_module(f"benchmarks.{name}").run()
        results[name] = [measure.as_dict() for measure in measures]
        if not arguments.json:
            from benchmarks.measure import show

            show(name, measures)
    if arguments.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
