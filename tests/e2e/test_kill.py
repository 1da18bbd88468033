"""Killed with SIGKILL at any moment and started again, a run ends with the rows of one that nobody disturbed."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections import Counter
from collections.abc import Callable

import pytest

from lego.engine.digest import folder_digest
from lego.rundb import calls, training
from lego.trainer.assemble import cut_trial
from tests.e2e.running import RunOf, check_attempts, check_database, left_behind, outcome_of, until

pytestmark = pytest.mark.podman

Process = subprocess.Popen[bytes]
Moment = Callable[[RunOf, Process], Callable[[], bool]]


def more(table: str) -> Moment:
    """More rows than there were when the process began."""

    def begin(run: RunOf, process: Process) -> Callable[[], bool]:
        before = run.count(table)
        return lambda: run.count(table) > before

    return begin


MOMENTS: dict[str, Moment] = {
    "starting": lambda run, process: lambda: True,
    "trial running": lambda run, process: lambda: bool(run.held_by(process)),
    "call recorded": more("calls"),
    "trial finished": more("trials WHERE status = 'finished'"),
    "verifying": lambda run, process: lambda: bool(run.held_by(process, "verify_owner")),
    "verdict recorded": more("verdicts"),
    "round closed": more("rounds WHERE status = 'closed'"),
    "step open": lambda run, process: (
        lambda: run.count("train_steps WHERE lease_owner LIKE ?", f"%/{process.pid}/%") > 0
    ),
    "checkpoint half written": lambda run, process: lambda: any(run.policies.glob(".*.writing-*/*")),
    "policy made": more("policies WHERE made_by != 'start'"),
}


def killed(run: RunOf, stage: str, moment: str, delay: float) -> bool:
    """Start a stage and kill it `delay` seconds after the moment; False where it ended before that."""
    with run.started(stage) as process:
        if not until(MOMENTS[moment](run, process), moment, process):
            return False
        try:
            process.wait(delay)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return True
    return False


def test_a_loop_killed_twenty_times_ends_like_an_undisturbed_one(scripted, undisturbed, tmp_path, podman):
    chance = random.Random(20)
    run = RunOf(tmp_path, "killed", scripted)
    plan = ["starting"] * 3 + ["trial running"] * 5 + ["call recorded"] * 4 + ["trial finished"] * 2
    plan += ["verifying"] * 4 + ["verdict recorded"] * 2
    chance.shuffle(plan)
    kills: Counter[str] = Counter()
    # A run that gets done before its last kill is killed while it starts, until there are enough.
    for moment in itertools.chain(["round closed"], plan, itertools.repeat("starting")):
        if kills.total() >= 21:
            break
        delay = chance.uniform(0.1, 2.0) if moment == "starting" else chance.uniform(0.0, 0.25)
        kills[moment] += killed(run, "loop", moment, delay)
    run.lego("loop")

    # How far a run gets between two kills is the machine's affair; enough of them must have hit it at work.
    assert kills.total() >= 20 and kills.total() - kills["starting"] >= 6, kills
    assert outcome_of(run) == outcome_of(undisturbed)
    assert check_attempts(run) >= 3
    check_calls(run)
    check_database(run)
    assert left_behind(podman, run) == []


def test_a_killed_verification_is_done_before_the_round_is_trained(scripted, tmp_path):
    run = RunOf(tmp_path, "unverified", {**scripted, "tasks": {**scripted["tasks"], "eval": []}})
    run.lego("rollout", "rollout.tasks_per_round=2")
    assert killed(run, "verify", "verifying", 0.0), run.said()
    run.lego("train", code=2)
    run.lego("verify")
    run.lego("train")
    assert run.count("verdicts") == run.count("trials") == 4


@pytest.mark.slow
def test_a_policy_killed_while_it_learns_is_made_once(scripted, tmp_path, podman):
    """`lego sft`, then `lego loop` with a real policy, killed in their trials, steps and checkpoints."""
    chance = random.Random(6)
    run = RunOf(tmp_path, "learning", learning(scripted))
    moments = {
        "sft": ("trial finished", "step open", "checkpoint half written"),
        "loop": ("call recorded", "step open", "checkpoint half written", "policy made"),
    }
    for stage in moments:
        for moment in moments[stage]:
            # The moment in which a checkpoint is half written is short.
            delay = 0.0 if moment == "checkpoint half written" else chance.uniform(0.0, 0.4)
            assert killed(run, stage, moment, delay), f"{moment} in {stage}: {run.said()}"
        run.lego(stage)

    check_policies(run)
    check_attempts(run)
    check_calls(run)
    check_database(run)
    assert left_behind(podman, run) == []
    assert [path.name for path in run.policies.iterdir() if path.name.startswith(".")] == []


def learning(scripted: dict) -> dict:
    """Six tasks that a tiny policy learns by heart, well enough to solve them now and then."""
    return {
        **scripted,
        "policy": {**scripted["policy"], "model": "tiny"},
        "engine": {"kind": "transformers", "threads": 1},
        "tasks": {"train": [{"source": "family", "name": "off-by-one", "count": 6, "seed": 1}]},
        "rollout": {**scripted["rollout"], "tasks_per_round": 3, "samples_per_task": 6, "concurrency": 4},
        "train": {"optimizer": {"lr": 3e-5}},
        "sft": {"tasks": 0, "held_out": 0, "epochs": 50, "batch_trials": 6, "optimizer": {"lr": 2e-3, "warmup": 5}},
    }


def check_policies(run: RunOf) -> None:
    """One policy a finished step, each from the one before, each with its folder as it was recorded."""
    with run.store() as store:
        steps = training.steps(store)
        policies = store.rows("SELECT * FROM policies ORDER BY version")
        rounds = store.rows("SELECT * FROM rounds ORDER BY id")
    made = [step for step in steps if step["policy_to"] is not None]
    assert [step["kind"] for step in steps] == ["sft", "rl", "rl"]
    assert [step["status"] for step in steps[:2]] == ["done", "done"], steps
    assert {step["status"] for step in steps if step not in made} <= {"skipped"}
    assert [step["policy_to"] for step in made] == [row["version"] for row in policies[1:]]
    assert [step["policy_from"] for step in made] == [row["parent"] for row in policies[1:]]
    assert [row["version"] for row in policies] == list(range(len(policies)))
    assert [row["parent"] for row in policies] == [None, *range(len(policies) - 1)]
    for row in policies:
        assert folder_digest(row["path"]) == row["digest"]
    for step in steps[1:]:
        proof = step["metrics"]
        assert proof["proof/correlation"] >= 0.999 and proof["proof/mean_gap"] < 1e-4, proof
        assert proof["step/dropped"] == 0, proof
    by_round = {step["round_id"]: step for step in steps}
    assert [row["policy_version"] for row in rounds] == [by_round[row["id"]]["policy_from"] for row in rounds]
    assert {row["status"] for row in rounds} == {"closed"}


def check_calls(run: RunOf) -> None:
    """The recorded calls of every attempt, the lost ones included, concatenate and cut into sound segments."""
    with run.store() as store:
        for trial in store.rows("SELECT id, status FROM trials"):
            recorded = [call for call in calls.of_trial(store, trial["id"]) if call["kind"] != "rejected"]
            assert recorded or trial["status"] == "failed"
            streams: dict[int, list[int]] = {}
            for call in recorded:
                context = streams[call["parent_seq"]] if call["parent_seq"] is not None else []
                prompt = context[: call["shared"]] + call["added_prompt_ids"].tolist()
                assert len(prompt) == call["prompt_tokens"] and call["shared"] <= len(context)
                streams[call["seq"]] = prompt + call["completion_ids"].tolist()
            cut = cut_trial(store, trial["id"], recorded[0]["sampler"] if recorded else "policy")
            assert cut.dropped == []
            assert all(segment.ids.tolist() == streams[segment.leaf] for segment in cut.segments)
            sampled = sum(segment.sampled for segment in cut.segments)
            assert sampled + cut.excluded.total() == sum(call["completion_tokens"] for call in recorded)
