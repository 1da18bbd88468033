"""Rejection sampling: `lego sft` with sft.source=solved learns the solved trials of earlier rounds, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from lego.engine.digest import folder_digest
from lego.rundb import calls, catalogue, training, verdicts
from lego.rundb.blobs import pack_floats
from lego.rundb.store import Store
from tests.e2e.running import RunOf, check_database

pytestmark = pytest.mark.podman


def as_if_sampled(run: RunOf) -> None:
    """The trials followed their scripts, since a policy that solves anything takes minutes to teach."""
    store = Store.open(run.db)
    for trial in store.rows("SELECT id FROM trials"):
        for call in calls.of_trial(store, trial["id"]):
            logprobs = pack_floats(np.full(len(call["completion_ids"]), -0.5))
            store.execute("UPDATE calls SET sampler = 'policy', logprobs = ? WHERE id = ?", (logprobs, call["id"]))
    store.close()


def test_solved_trials_are_learnt_and_nothing_else(scripted, tmp_path):
    config = {
        **scripted,
        "tasks": {"train": scripted["tasks"]["train"]},
        "rollout": {**scripted["rollout"], "tasks_per_round": 3, "samples_per_task": 1},
        "sft": {"source": "solved", "epochs": 1, "held_out": 0, "batch_trials": 2},
    }
    run = RunOf(tmp_path, "rejection", config)
    run.lego("rollout")
    run.lego("verify")
    run.lego("train")
    as_if_sampled(run)
    run.lego("sft")
    with run.store() as store:
        rl, sft = training.steps(store)
        solved = {row["id"] for row in verdicts.graded(store, 1) if row["solved"]}
        taught = store.rows("SELECT trial_id, tokens, dropped FROM samples WHERE step = ?", (sft["step"],))
        start, learnt = catalogue.policies(store)
        sampled = {row["trial_id"]: row["n"] for row in store.rows(
            "SELECT trial_id, sum(completion_tokens) AS n FROM calls GROUP BY trial_id")}  # fmt: skip
    assert 0 < len(solved) < run.count("trials")
    assert (rl["kind"], sft["kind"], sft["status"]) == ("rl", "sft", "done")
    assert {row["trial_id"] for row in taught} == solved and {row["dropped"] for row in taught} == {""}
    assert {row["trial_id"]: row["tokens"] for row in taught} == {trial: sampled[trial] for trial in solved}
    assert (learnt["made_by"], learnt["parent"]) == ("sft", start["version"])
    assert folder_digest(learnt["path"]) == learnt["digest"] != start["digest"]
    check_database(run)
