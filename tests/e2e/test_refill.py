"""Dynamic sampling by the real commands: by hand, killed, and taken up by the loop."""

from __future__ import annotations

import pytest

from lego.rundb import meta, training
from tests.e2e.running import RunOf, check_attempts, check_database, until

pytestmark = pytest.mark.podman


def test_tasks_join_a_round_whose_groups_teach_nothing(scripted, tmp_path):
    """Scripted samples of a task are all alike, so no group has spread: two tasks join, one after the other."""
    config = {
        **scripted,
        "tasks": {"train": scripted["tasks"]["train"]},
        "rollout": {**scripted["rollout"], "tasks_per_round": 1, "refill": 2},
        "loop": {"rounds": 1},
    }
    run = RunOf(tmp_path, "refilled", config)
    run.lego("rollout")
    run.lego("verify")
    run.lego("train", code=2)
    assert "round 1 is to be refilled: 0 of 1 groups have spread" in run.said()
    with run.started("rollout") as process:
        assert until(lambda: run.held_by(process), "a trial of the task that joined", process), run.said()
        process.kill()
        process.wait()
    assert run.count("round_tasks") == 2
    run.lego("loop")
    with run.store() as store:
        events, (step,) = meta.events(store), training.steps(store)
    assert run.rows("SELECT count(DISTINCT task_id), max(position) FROM round_tasks") == [(3, 2)]
    assert run.rows("SELECT kind, ordinal, policy_version, status FROM rounds") == [("train", 1, 0, "closed")]
    assert run.rows("SELECT count(*) FROM trials WHERE status = 'finished'") == [(6,)]
    told = [event["text"] for event in events if event["kind"] == "refill"]
    assert len(told) == 2 and all(text.startswith("round 1: 0 of 1 groups have spread; added ") for text in told)
    assert (step["status"], step["metrics"]["step/dropped"] > 0) == ("skipped", True)
    assert check_attempts(run) >= 1
    check_database(run)
