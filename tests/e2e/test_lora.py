"""`lego loop` that trains an adapter: each round is sampled from what the step before it wrote."""

from __future__ import annotations

import pytest

from lego.engine.adapter import base_of
from lego.engine.digest import folder_digest
from lego.rundb import catalogue, training
from tests.e2e.running import RunOf, check_database

pytestmark = pytest.mark.podman


def test_the_engine_samples_from_base_and_adapter_and_the_trainer_proves_it(scripted, tmp_path):
    """A random policy solves nothing: it is entropy that the steps raise, near a reference that is the base."""
    config = {
        **scripted,
        "engine": {"kind": "transformers", "threads": 1},
        "tasks": {"train": scripted["tasks"]["train"]},
        "rollout": {**scripted["rollout"], "tasks_per_round": 1, "max_turns": 1, "max_output_tokens": 24},
        "train": {
            "objective": {"entropy": 0.05, "kl": 0.01},
            "optimizer": {"lr": 1e-2},
            "lora": {"rank": 4, "export": "adapter"},
        },
        "retention": {"policies": 1},
        "loop": {"rounds": 3},
    }
    run = RunOf(tmp_path, "lora", config)
    run.lego("loop")
    with run.store() as store:
        steps, policies = training.steps(store), catalogue.policies(store)
    assert [(step["status"], step["policy_from"], step["policy_to"]) for step in steps] == [
        ("done", 0, 1), ("done", 1, 2), ("done", 2, 3),
    ]  # fmt: skip
    assert [step["metrics"]["kl/reference"] > 1e-6 for step in steps] == [False, True, True]
    assert all(step["metrics"]["proof/mean_gap"] < 1e-5 for step in steps)
    start = policies[0]
    assert [row["removed_at"] is not None for row in policies] == [False, True, False, False]
    for row in policies[2:]:
        base = base_of(row["path"])
        assert base and (base.path, base.digest) == (start["path"], start["digest"])
        assert folder_digest(row["path"]) == row["digest"]
    assert sorted(path.name for path in run.policies.iterdir()) == ["2", "3"]
    check_database(run)
