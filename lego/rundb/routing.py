"""Which experts a trial's tokens went to: files of their own beside the database, removed once trained on."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lego.rundb.store import Store

RoutingArray = npt.NDArray[np.int16]


def put(store: Store, trial_id: int, seq: int, begin: int, rows: RoutingArray) -> None:
    """Keep a call's own rows: rows[i] are the experts of the call's id number begin + i, [tokens, layers, k] int16."""
    folder = _folder(store, trial_id)
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{seq}.npz"
    np.savez_compressed(aside, begin=begin, rows=rows)
    aside.rename(folder / f"{seq}.npz")


def of_trial(store: Store, trial_id: int) -> dict[int, tuple[int, RoutingArray]]:
    """seq -> (begin, rows) of each call that has some."""
    found: dict[int, tuple[int, RoutingArray]] = {}
    for file in _folder(store, trial_id).glob("[0-9]*.npz"):
        with np.load(file) as held:
            found[int(file.stem)] = (int(held["begin"]), held["rows"])
    return found


def drop(store: Store, round_id: int) -> None:
    """Forget a round's."""
    drop_trials(store, [row["id"] for row in store.rows("SELECT id FROM trials WHERE round_id = ?", (round_id,))])


def orphans(store: Store) -> list[int]:
    """The trials with routing that no open training round waits for: a kill came between the end of their round and
    `drop`."""
    folder = store.path.parent / "routing"
    kept = {int(path.name) for path in folder.iterdir() if path.name.isdigit()} if folder.is_dir() else set()
    awaited = store.rows(
        "SELECT t.id FROM trials t JOIN rounds r ON r.id = t.round_id WHERE r.kind = 'train' AND r.status = 'open'"
    )
    return sorted(kept - {row["id"] for row in awaited})


def drop_trials(store: Store, trials: Iterable[int]) -> None:
    """Forget these trials'."""
    for trial_id in trials:
        shutil.rmtree(_folder(store, trial_id), ignore_errors=True)


def _folder(store: Store, trial_id: int) -> Path:
    return store.path.parent / "routing" / str(trial_id)
