from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lego.rundb import catalogue, rounds
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "run.db")
    yield opened
    opened.close()


def fill(store: Store, tasks: int = 2, samples: int = 3) -> rounds.Round:
    """A run with a policy and one open round."""
    names = [f"task-{number}" for number in range(tasks)]
    catalogue.register_tasks(store, [TaskEntry(name, "train", name, "test", "", "") for name in names])
    catalogue.add_policy(store, parent=None, path="p", digest="d", made_by="start")
    return rounds.open_round(
        store,
        "train",
        ordinal=1,
        policy_version=0,
        tasks=[(name, "tiny-agent") for name in names],
        samples=samples,
        settings={},
    )
