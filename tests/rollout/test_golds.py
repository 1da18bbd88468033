"""What the solution's own run showed: asked for once a task, or a step of it, and remembered."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lego.rollout.golds import gold_of
from lego.rundb import catalogue
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from lego.verifier.bench import Bench
from lego.verifier.witness import Seen
from tests.verifier.shell_tasks import shell_task

SEEN = Seen(0, sessions=1, status=(0,), passed=3, missed=("a",))


class Counting:
    """Stands for a bench whose solution takes a while."""

    def __init__(self, task: str, seen: Seen | None = SEEN) -> None:
        self.task, self.seen, self.runs = replace(shell_task(), id=task), seen, 0

    async def gold_seen(self) -> Seen | None:
        self.runs += 1
        await asyncio.sleep(0)
        return self.seen


def opened(folder: Path) -> Store:
    store = Store.open(folder / "run.db")
    catalogue.register_tasks(store, [TaskEntry(name, "train", "d", "test", "", "") for name in ("one", "two")])
    return store


async def ask(store: Store, bench: Counting) -> Seen | None:
    return await gold_of(store)(cast(Bench, bench))


async def test_verdicts_of_a_task_share_one_run_of_its_solution(tmp_path: Path) -> None:
    store = opened(tmp_path)
    bench = Counting("one")
    assert await asyncio.gather(*(ask(store, bench) for _ in range(5))) == [SEEN] * 5
    assert bench.runs == 1
    assert await ask(store, Counting("one", None)) == SEEN, "remembered by the run"
    store.close()


async def test_steps_are_remembered_apart(tmp_path: Path) -> None:
    store = opened(tmp_path)
    first, second = Counting("two/first"), Counting("two/second", replace(SEEN, passed=7))
    assert [await ask(store, each) for each in (first, second, first)] == [first.seen, second.seen, first.seen]
    assert (first.runs, second.runs) == (1, 1)
    assert await ask(store, Counting("two", None)) is None, "of the whole nothing is known"
    store.close()


async def test_what_an_earlier_version_did_not_look_for_is_asked_again(tmp_path: Path) -> None:
    store = opened(tmp_path)
    known: dict[str, Any] = SEEN.as_dict()
    known.pop("reached")
    catalogue.record_baseline(
        store, task_id="one", kind="gold", reward=1.0, outcome="passed", detail={"seen": known}, log=b"", seconds=0.0
    )
    bench = Counting("one", replace(SEEN, reached=("calc.py: gc.get_objects",)))
    assert await ask(store, bench) == bench.seen and bench.runs == 1
    store.close()


async def test_without_a_solution_that_passes_nothing_is_remembered(tmp_path: Path) -> None:
    store = opened(tmp_path)
    bench = Counting("one", None)
    assert [await ask(store, bench), await ask(store, bench)] == [None, None] and bench.runs == 2
    store.close()
