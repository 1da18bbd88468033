"""`lego train` with workers of its own, as a real command in a real run. All modes: `make test-deepspeed`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from lego.rundb import training
from tests.e2e.running import RunOf
from tests.trainer.test_deepspeed import require

pytestmark = pytest.mark.podman

ALL = "deepspeed" in os.environ.get("LEGO_REQUIRE", "").split(",")
MODES = [(2, 2, "none")] + ALL * [
    (0, 1, "none"), (0, 2, "none"), (1, 1, "none"), (1, 2, "none"), (2, 1, "none"), (3, 1, "none"), (3, 2, "none"),
    (1, 1, "optimizer"), (1, 2, "optimizer"), (2, 1, "optimizer"), (2, 2, "optimizer"),
    (3, 1, "optimizer"), (3, 2, "optimizer"), (3, 1, "all"), (3, 2, "all"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sampled(scripted, podman, tmp_path_factory) -> RunOf:
    """A round sampled from a random policy and verified. Nothing is solved, so it is entropy that a step raises."""
    require()
    config = {
        **scripted,
        "engine": {"kind": "transformers", "threads": 1},
        "rollout": {**scripted["rollout"], "tasks_per_round": 1, "max_turns": 2, "max_output_tokens": 24},
        "train": {"objective": {"entropy": 0.01}, "optimizer": {"lr": 1e-4}},
    }
    run = RunOf(tmp_path_factory.mktemp("sampled"), "sampled", config)
    run.lego("build-images")
    run.lego("rollout")
    run.lego("verify")
    return run


@pytest.mark.parametrize(("zero", "processes", "offload"), MODES)
def test_lego_train_takes_its_step_in_processes_of_its_own(sampled: RunOf, zero, processes, offload, tmp_path) -> None:
    require(offload)
    run = _copy(sampled, tmp_path)
    run.lego(
        "train", "train.backend=deepspeed", f"train.deepspeed.zero={zero}", f"train.deepspeed.processes={processes}",
        f"train.deepspeed.offload={offload}",
    )  # fmt: skip
    with run.store() as store:
        (step,) = training.steps(store)
    assert step["status"] == "done" and step["metrics"]["step/entropy"] > 0
    made = run.policies / "1"
    assert {"model.safetensors", "optimizer.pt", "tokenizer.json", "trainer.json"} <= {f.name for f in made.iterdir()}
    assert json.loads((made / "trainer.json").read_text())["parent"] == 0
    assert [path.name for path in run.policies.iterdir() if path.name.startswith(".")] == []


def _copy(run: RunOf, folder: Path) -> RunOf:
    import shutil

    copied = RunOf(folder, run.name, run.config)
    shutil.copytree(run.folder / run.name, folder / run.name, dirs_exist_ok=True)
    return copied
