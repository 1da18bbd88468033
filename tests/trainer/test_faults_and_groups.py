"""Infrastructure faults move no group statistic, whatever they are and wherever they strike."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lego.config.schema import Config
from lego.rundb import catalogue, trials, verdicts
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from lego.trainer.assemble import assemble
from tests.trainer.test_assemble import begin, play

# A slot's story: how many attempts are lost first (under it, or with their container), how often its verification
# fails first, and the reward it ends with.
slots = st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0.0, 0.25, 1.0]))


def _lose(store: Store, round_id: int) -> None:
    trial = trials.claim(store, round_id)
    assert trial
    trials.fail(store, trial, "infra", "podman died", 10)
    # So that the same slot comes next, as the story has it.
    store.execute("UPDATE trials SET due = -1 WHERE status = 'pending' AND attempt > 1")


def _fail_verification(store: Store, round_id: int, trial: int) -> None:
    verdicts.record(
        store, trial, reward=None, outcome="error", detail={"fault": "infra", "reason": "podman died"}, tamper=[],
        trust="", log=b"", seconds=0.0, leased=False,
    )  # fmt: skip


def _advantages(
    story: list[tuple[int, int, float]], faults: bool
) -> tuple[list[tuple[str, int, float]], dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Path(folder) / "run.db")
        try:
            catalogue.register_tasks(store, [TaskEntry(name, "train", name, "test", "", "") for name in ("a", "b")])
            catalogue.add_policy(store, parent=None, path="p", digest="d", made_by="start")
            round_ = begin(store, ["a", "b"], len(story) // 2)
            by_trial: dict[int, float] = {}
            for lost, unverified, reward in story:
                for _ in range(lost if faults else 0):
                    _lose(store, round_.id)
                trial = play(store, round_, reward)
                by_trial[trial] = reward
                for _ in range(unverified if faults else 0):
                    _fail_verification(store, round_.id, trial)
                if faults and unverified:
                    verdicts.record(
                        store, trial, reward=reward, outcome="passed", detail={}, tamper=[], trust="", log=b"",
                        seconds=0.0, leased=False,
                    )  # fmt: skip
            out = assemble(store, round_, Config())
            places = {row["id"]: (row["task_id"], row["sample"]) for row in store.rows("SELECT * FROM trials")}
            rows = zip(out.rows, out.segments, strict=True)
            return sorted((*places[row.trial_id], segment.advantage) for row, segment in rows), out.metrics()
        finally:
            store.close()


@settings(max_examples=12)
@given(st.lists(slots, min_size=4, max_size=8).filter(lambda story: len(story) % 2 == 0))
def test_advantages_are_those_of_a_round_without_faults(story: list[tuple[int, int, float]]) -> None:
    assert _advantages(story, faults=True) == _advantages(story, faults=False)
