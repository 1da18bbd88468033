"""What a task's tests show when its own solution passes them: run once a task, remembered in the run."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import fields
from weakref import WeakKeyDictionary

from lego.rundb import catalogue
from lego.rundb.store import Store
from lego.verifier.bench import Bench
from lego.verifier.grade import Gold
from lego.verifier.witness import Seen

_GATES: WeakKeyDictionary[Store, defaultdict[str, asyncio.Lock]] = WeakKeyDictionary()
_KEYS = {one.name for one in fields(Seen)}


def gold_of(store: Store) -> Gold:
    """Finds what the solution's run showed in a run's database, or has it run now and keeps that. Verdicts that wait
    for the same task's solution wait for one run of it."""
    gates = _GATES.setdefault(store, defaultdict(asyncio.Lock))

    async def gold(bench: Bench) -> Seen | None:
        task, _, step = bench.task.id.partition("/")
        async with gates[bench.task.id]:
            known = catalogue.gold_seen(store, task, step)
            # What an earlier version saw may lack what is looked for today.
            if known is not None and known.keys() >= _KEYS:
                return Seen.from_dict({key: known[key] for key in _KEYS})
            seen = await bench.gold_seen()
            if seen is not None:
                catalogue.record_baseline(
                    store, task_id=task, kind="gold", reward=1.0, outcome="passed",
                    detail={catalogue.seen_key(step): seen.as_dict()}, log=b"", seconds=0.0,
                )  # fmt: skip
            return seen

    return gold
