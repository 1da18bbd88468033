"""Rows per second through the run database, beside bare sqlite-utils writing the same rows.

Every row is its own transaction on both sides, as a trial's calls are. The store packs and compresses a call's ids
and log-probs and keeps its tool list once; the bare side writes the arrays' bytes. "as durable" gives the bare side
the store's own settings (write-ahead log, a sync each commit); "default" leaves it as sqlite-utils opens a file
(rollback journal, syncs too). Files lie in the temporary folder, so the disk under it is part of the result.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlite_utils import Database

from benchmarks.measure import Measure, interleaved
from lego.proxy.records import FinishedCall
from lego.rundb import calls, catalogue, rounds, trials
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store

ROWS, REPEATS = 100, 5
PROMPT_IDS, COMPLETION_IDS = 1500, 500
_FINISHED: dict[str, Any] = {
    "ending": "exit",
    "reason": "",
    "exit_code": 0,
    "seconds": 2.5,
    "waited": 1.5,
    "summary": {"calls": 3, "sampled_tokens": 150},
    "output": b"ok\n" * 100,
    "submission": b"s" * 2000,
    "submission_digest": "0" * 64,
    "submission_note": {"changed": ["/app/mod.py"], "dropped": []},
}


def example_call() -> FinishedCall:
    """A turn in the middle of a conversation: a long tool result before it, a thoughtful reply."""
    rng = np.random.default_rng(0)
    text = " ".join(f"word{number}" for number in rng.integers(0, 500, 400))
    parameters = {"type": "object", "properties": {"command": {"type": "string"}}}
    tools = json.dumps([{"type": "function", "function": {"name": "bash", "parameters": parameters}}])
    return FinishedCall(
        seq=1,
        parent_seq=None,
        shared=0,
        kind="main",
        sampler="policy",
        policy_version=0,
        dialect="openai-chat",
        added_prompt_ids=rng.integers(0, 150_000, PROMPT_IDS).astype(np.int32),
        completion_ids=rng.integers(0, 150_000, COMPLETION_IDS).astype(np.int32),
        logprobs=-rng.exponential(1.0, COMPLETION_IDS).astype(np.float32),
        prompt_tokens=PROMPT_IDS,
        finish="stop",
        fate="delivered",
        status=200,
        reason="",
        messages={"kept": 0, "of": None, "new": [{"role": "user", "content": text}]},
        reply={"role": "assistant", "content": text},
        tools_digest="0" * 64,
        tools=tools,
        wishes={},
        drift={},
        started_at=0.0,
        first_token_at=0.5,
        ended_at=1.0,
    )


class Ours:
    """A run database with one round of trials to claim."""

    def __init__(self, path: Path) -> None:
        self.store = Store.open(path)
        catalogue.register_tasks(self.store, [TaskEntry("task", "train", "0" * 64, "harbor", "Fix it.", "")])
        catalogue.add_policy(self.store, parent=None, path="", digest="", made_by="start")
        self.round = rounds.open_round(
            self.store,
            "train",
            ordinal=1,
            policy_version=0,
            tasks=[("task", "tiny-agent")],
            samples=ROWS * (REPEATS + 2),
            settings={},
        )
        first = trials.claim(self.store, self.round.id)
        assert first is not None
        self.trial = first
        self.call = example_call()
        self.written = 0

    def calls(self) -> float:
        def one(number: int) -> None:
            calls.record(self.store, self.trial.id, vars(replace(self.call, seq=self.written + number)))

        rate = _rate(one)
        self.written += ROWS
        return rate

    def trials(self) -> float:
        def one(number: int) -> None:
            trial = trials.claim(self.store, self.round.id)
            assert trial is not None
            trials.finish(self.store, trial, **_FINISHED)

        return _rate(one)


class Bare:
    """The same rows by sqlite-utils alone."""

    def __init__(self, path: Path, as_durable: bool) -> None:
        self.db = Database(sqlite3.connect(path))
        if as_durable:
            self.db.execute("PRAGMA journal_mode = WAL").fetchone()
            self.db.execute("PRAGMA synchronous = FULL")
        count = ROWS * (REPEATS + 2)
        self.db.table("trials").insert_all(
            ({"id": number, "status": "pending", "owner": None} for number in range(count)), pk="id"
        )
        self.db.table("trials").create_index(["status"])
        self.call = vars(example_call())

    def calls(self) -> float:
        def one(number: int) -> None:
            self.db.table("calls").insert({key: _plain(value) for key, value in self.call.items()})

        return _rate(one)

    def trials(self) -> float:
        values = {key: _plain(value) for key, value in _FINISHED.items()}
        table = self.db.table("trials")

        def one(number: int) -> None:
            row = next(table.rows_where("status = ?", ["pending"], order_by="id", limit=1))
            table.update(row["id"], {"status": "running", "owner": "me"}, alter=True)
            table.update(row["id"], {"status": "finished", **values}, alter=True)

        return _rate(one)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return json.dumps(value) if isinstance(value, dict) else value


def _rate(one: Callable[[int], None]) -> float:
    begun = time.perf_counter()
    for number in range(ROWS):
        one(number)
    return ROWS / (time.perf_counter() - begun)


def run() -> list[Measure]:
    measures = []
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(Path(folder, "run.db"))
        durable, default = Bare(Path(folder, "durable.db"), True), Bare(Path(folder, "default.db"), False)
        peers = {"sqlite-utils, as durable": durable, "sqlite-utils, default": default}
        for what in ("calls", "trials"):
            sides = {"ours": getattr(ours, what), **{name: getattr(peer, what) for name, peer in peers.items()}}
            medians = interleaved(sides, REPEATS)
            said = f"calls of {PROMPT_IDS + COMPLETION_IDS} ids" if what == "calls" else "trials claimed and finished"
            measures += [Measure(said, "rows/s", medians["ours"], medians[name], name) for name in peers]
    return measures
