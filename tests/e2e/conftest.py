"""Runs of `lego` in real sandboxes: a small config, the policy it starts from, and one run that nobody disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lego.sandbox.podman import Podman
from lego.trainer.tiny import make_tiny
from tests.e2e.running import RunOf

Config = dict[str, Any]


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Two rounds of four tasks, two samples each, and two held-out tasks; the trials follow their demonstrations."""
    policy = tmp_path_factory.mktemp("policy") / "tiny"
    make_tiny(policy, 0, ["Fix app.py so that f(x) is true for x at most 3.", "def f(x):\n    return x < 3\n"])
    family = {"source": "family", "name": "off-by-one"}
    return {
        "policy": {"model": str(policy), "renderer": "tiny-chatml", "context": 2048},
        "engine": {"kind": "scripted"},
        "tasks": {
            # Half of the demonstrations repair at random, so that both rewards occur.
            "train": [{**family, "count": 12, "seed": 1, "options": {"random_fix_rate": 0.5}}],
            "eval": [{**family, "count": 2, "seed": 2}],
        },
        "harness": {"tiny-agent": 1.0},
        "sandbox": {"memory": "256m", "pids": 64, "timeout": "60s"},
        "rollout": {
            "tasks_per_round": 4,
            "samples_per_task": 2,
            "max_turns": 6,
            "max_output_tokens": 96,
            "concurrency": 2,
            "max_attempts": 60,
            "retry_pause": "1ms",
        },
        "verify": {"concurrency": 2},
        "loop": {"rounds": 2},
    }


@pytest.fixture(scope="session")
def undisturbed(scripted: Config, podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """`lego loop` from beginning to end."""
    run = RunOf(Path(tmp_path_factory.mktemp("undisturbed")), "undisturbed", scripted)
    run.lego("loop")
    return run
