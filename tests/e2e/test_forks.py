"""A trial that really forked, compacted and sent out sub-agents: recorded in a sandbox, then trained on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lego.rundb import calls
from lego.trainer.assemble import cut_trial
from lego.trainer.batch import TrainSegment, pack
from lego.trainer.policy import Policy
from tests.e2e.running import RunOf
from tests.trainer._forks import unique_tokens
from tests.trainer.test_sharing import same, step

pytestmark = pytest.mark.podman


@pytest.fixture(scope="module")
def recorded(scripted, podman, tmp_path_factory) -> RunOf:
    config = {
        **scripted,
        "policy": {**scripted["policy"], "context": 4096},
        "engine": {"kind": "transformers", "threads": 1},
        "harness": {str(Path(__file__).parent / "forking" / "forking.yaml"): 1.0},
        "rollout": {
            **scripted["rollout"], "tasks_per_round": 1, "samples_per_task": 2, "max_turns": 60, "max_output_tokens": 24
        },
    }  # fmt: skip
    run = RunOf(tmp_path_factory.mktemp("forks"), "forks", config)
    run.lego("build-images")
    run.lego("rollout")
    return run


def test_its_steps_cost_the_unique_tokens_and_pull_as_the_unshared_ones_do(recorded: RunOf) -> None:
    with recorded.store() as store:
        ids = [row["id"] for row in store.rows("SELECT id FROM trials WHERE status = 'finished'")]
        rows = calls.of_trial(store, ids[0])
        cut = cut_trial(store, ids[0], "policy")
    kinds = [row["kind"] for row in rows]
    assert kinds.count("subagent") == 6 and kinds.count("main") == 2 * (8 + 4) + 1
    rewritten = [row["kind"] for row in rows if row["drift"].get("how") == "forked"]
    assert rewritten == ["subagent", "subagent", "main"], "the last is what follows the compaction"
    trial = [
        TrainSegment(ids[0], segment.ids, segment.mask, segment.logprobs, 1.0, 1 / len(cut.segments))
        for segment in cut.segments
    ]
    assert sum(int(segment.mask.sum()) for segment in trial) == sum(row["completion_tokens"] for row in rows)
    policy = Policy(Path(recorded.config["policy"]["model"]))
    run_over = sum(batch.ids.numel() for batch in pack(trial, 1 << 20, policy.layout(share=True)))
    alone = sum(int(np.flatnonzero(segment.mask)[-1]) for segment in trial)
    print(f"{len(trial)} segments, {alone} tokens, {unique_tokens(trial)} unique, {run_over} run over")
    assert run_over <= 1.15 * unique_tokens(trial) < alone / 2
    same(step(policy, trial, "rows", tokens=1), step(policy, trial, tokens=1 << 20))
