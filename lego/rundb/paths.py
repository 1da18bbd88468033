"""Where a run lives."""

from __future__ import annotations

from pathlib import Path


def run_folder(runs: str, name: str) -> Path:
    return (Path(runs) / name).resolve()


def run_db(runs: str, name: str) -> Path:
    return run_folder(runs, name) / "run.db"
