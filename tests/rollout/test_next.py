from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lego.config.schema import Config
from lego.policy import PolicyRef
from lego.rollout.next import eval_round_of
from lego.rollout.run import Run
from lego.rundb import catalogue
from lego.rundb.catalogue import TaskEntry
from lego.rundb.rounds import Round, all_rounds
from lego.rundb.store import Store


def test_evaluations_begun_at_one_moment_are_rounds_of_their_own(tmp_path: Path) -> None:
    config = Config(harness={"tiny-agent": 1.0})
    workers = 8
    with_tasks = Store.open(tmp_path / "run.db")
    catalogue.register_tasks(with_tasks, [TaskEntry("held-out", "eval", "d", "test", "", "")])
    policies = [
        catalogue.add_policy(with_tasks, parent=None, path=f"p{n}", digest=f"d{n}", made_by="start")
        for n in range(workers // 2)
    ]
    ready = threading.Barrier(workers)

    def begin(policy: PolicyRef) -> Round:
        store = Store.open(tmp_path / "run.db")
        run = Run(config, tmp_path, store, {}, {})
        ready.wait()
        try:
            return eval_round_of(run, policy)
        finally:
            store.close()

    with ThreadPoolExecutor(workers) as pool:
        begun = list(pool.map(begin, [*policies, *policies]))
    assert [round_.policy_version for round_ in begun] == [policy.version for policy in (*policies, *policies)]
    rounds = all_rounds(with_tasks)
    assert sorted(round_.ordinal for round_ in rounds) == [1, 2, 3, 4], "one a policy, each with a number of its own"
    with_tasks.close()
