"""A run of very many trials, written in bulk: for measuring what is shown, and for tests that count its work."""

from __future__ import annotations

from pathlib import Path

from lego.rundb import catalogue, rounds
from lego.rundb.store import Store
from tests.run_fixture import SETTINGS, begin


def a_big_run(folder: Path, *, rounds_: int = 50, tasks: int = 125, samples: int = 8, size: int = 2000) -> Store:
    """`rounds_` rounds of `tasks` x `samples` finished, verified trials, `size` bytes of output and of submission each.

    The last round is open, one trial of it running and two pending.
    """
    store = begin(folder, tasks=tasks)
    names = [(name, "tiny-agent") for name in catalogue.task_ids(store, "train")]
    with store.write():
        for ordinal in range(1, rounds_ + 1):
            round_ = rounds.open_round(
                store, "train", ordinal=ordinal, policy_version=0, tasks=names, samples=samples, settings=SETTINGS
            )
            store.execute(
                "UPDATE trials SET status = 'finished', ending = 'exit', started_at = 1.0, ended_at = 2.0, seconds = 1,"
                ' waited = 0, summary = \'{"calls":3,"sampled_tokens":36}\', output = zeroblob(?),'
                " submission = zeroblob(?) WHERE round_id = ?",
                (size, size, round_.id),
            )
            store.execute(
                "INSERT INTO verdicts (trial_id, at, reward, outcome, log) SELECT id, 3.0, (id * 7919 % 10) < 4,"
                " CASE WHEN (id * 7919 % 10) < 4 THEN 'passed' ELSE 'failed' END, zeroblob(?) FROM trials"
                " WHERE round_id = ?",
                (size, round_.id),
            )
            if ordinal < rounds_:
                rounds.close_round(store, round_.id, "done")
        last = store.value("SELECT max(id) FROM trials")
        store.execute("DELETE FROM verdicts WHERE trial_id > ?", (last - 3,))
        store.execute("UPDATE trials SET status = 'pending' WHERE id > ?", (last - 3,))
        store.execute(
            "UPDATE trials SET status = 'running', lease_owner = ?, lease_until = 9e9 WHERE id = ?",
            (store.owner, last - 2),
        )
    return store
