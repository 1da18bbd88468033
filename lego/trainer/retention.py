"""Which checkpoints the retention rule lets go."""

from __future__ import annotations

from pathlib import Path

from lego.engine.adapter import base_of
from lego.rundb import catalogue
from lego.rundb.store import Row, Store


def removable(store: Store, keep: int) -> list[Row]:
    """The policies that are not to be kept with `keep` (0 = all are) beside the first and the newest: none still to
    evaluate, and none that the adapter of one that stays stands on."""
    if not keep:
        return []
    old = catalogue.removable_policies(store, keep)
    leaving = {row["version"] for row in old}
    staying = [
        row["path"] for row in catalogue.policies(store) if row["removed_at"] is None and row["version"] not in leaving
    ]
    needed = {place for folder in staying for place in _stood_on(folder)}
    return [row for row in old if Path(row["path"]).resolve() not in needed]


def _stood_on(folder: str) -> set[Path]:
    """Everything that a policy's adapter stands on. A merged one is trained on from there, too."""
    found: set[Path] = set()
    while (base := base_of(folder)) and Path(base.path).resolve() not in found:
        folder = base.path
        found.add(Path(folder).resolve())
    return found
