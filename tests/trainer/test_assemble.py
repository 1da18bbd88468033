"""From rows to samples: who is in a group, who is in the loss, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lego.config.schema import Config
from lego.errors import TrainerError
from lego.rundb import calls, catalogue, rounds, trials, verdicts
from lego.rundb.catalogue import TaskEntry
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.trainer.assemble import assemble, assemble_demonstrations, assemble_solved
from lego.trainer.batch import check


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "run.db")
    catalogue.register_tasks(opened, [TaskEntry(name, "train", name, "test", "", "") for name in ("a", "b")])
    catalogue.add_policy(opened, parent=None, path="p", digest="d", made_by="start")
    yield opened
    opened.close()


def begin(store: Store, tasks: list[str], samples: int) -> Round:
    return rounds.open_round(
        store, "train", ordinal=1, policy_version=0, tasks=[(task, "h") for task in tasks], samples=samples, settings={}
    )


def call(
    seq: int, *, parent: int | None = None, shared: int = 0, sampler: str = "policy", **more: Any
) -> dict[str, Any]:
    """A recorded call of two prompt ids and three sampled ones."""
    return {
        "seq": seq, "parent_seq": parent, "shared": shared, "kind": "main", "sampler": sampler, "policy_version": 0,
        "dialect": "openai_chat", "added_prompt_ids": np.array([1, 2]), "completion_ids": np.array([3, 4, 5]),
        "logprobs": np.array([-0.5, -0.25, -1.0]) if sampler == "policy" else None, "prompt_tokens": shared + 2,
        "finish": "stop", "fate": "delivered", "status": 200, "reason": "", "messages": {"new": []}, "reply": {},
        "wishes": {}, "drift": {}, "tools_digest": "", "tools": "", "started_at": 0.0, "first_token_at": 0.0,
        "ended_at": 1.0, **more,
    }  # fmt: skip


def play(
    store: Store,
    round_: Round,
    reward: float | None,
    *,
    ending: str = "exit",
    tamper: bool = False,
    recorded: list[dict[str, Any]] | None = None,
) -> int:
    """Run and verify the round's next trial."""  # fmt: skip
    trial = trials.claim(store, round_.id)
    assert trial
    for row in recorded or [call(1)]:
        calls.record(store, trial.id, row)
    trials.finish(
        store, trial, ending=ending, reason="", exit_code=0, seconds=1.0, waited=0.0, summary={}, output=b"",
        submission=b"", submission_digest="", submission_note={},
    )  # fmt: skip
    claimed = verdicts.claim(store, round_.id)
    assert claimed and claimed["id"] == trial.id
    finding = [{"kind": "protected", "path": "tests/x.py", "detail": ""}] if tamper else []
    outcome = "error" if reward is None else "passed" if reward == 1 else "failed"
    verdicts.record(
        store, trial.id, reward=reward, outcome=outcome, detail={}, tamper=finding, trust="", log=b"", seconds=0.0
    )
    return trial.id


def test_a_group_is_centred_over_its_graded_members(store: Store) -> None:
    round_ = begin(store, ["a"], 4)
    for reward in (1.0, 0.0, 0.0, 1.0):
        play(store, round_, reward)
    config = Config()
    config.train.objective.advantage = "centred"
    out = assemble(store, round_, config)
    assert [segment.advantage for segment in out.segments] == [0.5, -0.5, -0.5, 0.5]
    assert out.metrics() == {
        "step/dropped": 0.0, "group/graded": 1.0, "group/flat": 0.0, "group/skipped": 0.0, "reward/mean": 0.5,
        "reward/std": pytest.approx(0.57735, abs=1e-4),
    }  # fmt: skip


def test_groups_of_different_tasks_do_not_mix(store: Store) -> None:
    round_ = begin(store, ["a", "b"], 2)
    for reward in (1.0, 1.0, 0.0, 0.0):
        play(store, round_, reward)
    out = assemble(store, round_, Config())
    assert [segment.advantage for segment in out.segments] == [0.0] * 4
    assert out.metrics()["group/flat"] == 2.0


@pytest.mark.parametrize(
    ("name", "flat", "left"), [("gspo", "auto", 4), ("gspo", "skip", 2), ("dapo", "auto", 2), ("dapo", "count", 4)]
)
def test_dapo_leaves_groups_without_spread_out_as_its_paper_does(store: Store, name: str, flat: str, left: int) -> None:
    round_ = begin(store, ["a", "b"], 2)
    for reward in (1.0, 1.0, 0.0, 1.0):
        play(store, round_, reward)
    config = Config()
    config.train.objective.name, config.train.objective.flat = name, flat
    assert len(assemble(store, round_, config).segments) == left


def test_groups_without_spread_may_be_left_out_of_the_mean(store: Store) -> None:
    round_ = begin(store, ["a", "b"], 2)
    for reward in (1.0, 1.0, 0.0, 1.0):
        play(store, round_, reward)
    config = Config()
    config.train.objective.flat = "skip"
    out = assemble(store, round_, config)
    assert [segment.advantage > 0 for segment in out.segments] == [False, True]
    assert [row.dropped for row in out.rows] == ["its group has no spread"] * 2 + ["", ""]


def test_or_count_for_less_than_a_trial(store: Store) -> None:
    round_ = begin(store, ["a", "b"], 2)
    for reward in (1.0, 1.0, 0.0, 1.0):
        play(store, round_, reward)
    config = Config()
    assert [segment.counts for segment in assemble(store, round_, config).segments] == [1.0] * 4
    config.train.objective.flat, config.train.objective.flat_weight = "weigh", 0.25
    out = assemble(store, round_, config)
    assert [segment.counts for segment in out.segments] == [0.25, 0.25, 1.0, 1.0]
    assert not any(row.dropped for row in out.rows)


def test_infra_faults_move_no_baseline(store: Store) -> None:
    """A lost attempt and a verifier fault enter neither the loss nor the group's mean."""
    round_ = begin(store, ["a"], 4)
    lost = trials.claim(store, round_.id)
    assert lost
    trials.fail(store, lost, "infra", "podman died", 1)
    for reward in (1.0, 0.0):
        play(store, round_, reward)
    unverified = play(store, round_, None)
    for _ in range(2):
        claimed = verdicts.claim(store, round_.id)
        assert claimed
        verdicts.record(
            store, unverified, reward=None, outcome="error", detail={}, tamper=[], trust="", log=b"", seconds=0.0
        )
    config = Config()
    config.train.objective.advantage = "centred"
    out = assemble(store, round_, config)
    assert [segment.advantage for segment in out.segments] == [0.5, -0.5]
    assert [(row.trial_id, row.dropped) for row in out.rows if row.dropped] == [(unverified, "verifier fault")]


@pytest.mark.parametrize(
    ("rule", "rewards"), [("flag", [1.0, 1.0, 0.0]), ("penalise", [0.0, 1.0, 0.0]), ("exclude", [1.0, 0.0])]
)
def test_tampered_trials_follow_the_config(store: Store, rule: str, rewards: list[float]) -> None:
    round_ = begin(store, ["a"], 3)
    play(store, round_, 1.0, tamper=True)
    play(store, round_, 1.0)
    play(store, round_, 0.0)
    config = Config()
    config.verify.tamper = rule
    out = assemble(store, round_, config)
    assert out.rewards == rewards
    assert len(out.segments) == len(rewards)


@pytest.mark.parametrize("rule", ["flag", "penalise", "exclude"])
def test_tampering_is_no_way_out_of_a_0(store: Store, rule: str) -> None:
    """What leaves the loss must not depend on what the policy sampled: a trial that failed may not choose to leave."""
    round_ = begin(store, ["a"], 2)
    play(store, round_, 0.0, tamper=True)
    play(store, round_, 1.0)
    config = Config()
    assert config.verify.tamper == "penalise"
    config.verify.tamper = rule
    assert assemble(store, round_, config).rewards == [0.0, 1.0]


@pytest.mark.parametrize(
    ("rule", "advantages"),
    [("train", [-0.75, 0.25, 0.25, 0.25]), ("penalise", [-0.75, 0.25, 0.25, 0.25]), ("mask", [0.0, 0.0, 0.0])],
)
def test_truncated_trials_follow_the_config(store: Store, rule: str, advantages: list[float]) -> None:
    """RL#4061: masked, a trial that ran out of time still moved the baseline, and all that finished looked good."""
    round_ = begin(store, ["a"], 4)
    cut_short = play(store, round_, 0.0, ending="timeout")
    for _ in range(3):
        play(store, round_, 1.0)
    config = Config()
    config.train.truncated, config.train.objective.advantage = rule, "centred"
    out = assemble(store, round_, config)
    assert [segment.advantage for segment in out.segments] == advantages
    dropped = [(row.trial_id, row.dropped) for row in out.rows if row.dropped]
    assert dropped == ([(cut_short, "truncated by timeout")] if rule == "mask" else [])


def test_penalised_a_truncated_trial_is_paid_nothing(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    play(store, round_, 1.0, ending="turns")
    play(store, round_, 0.5)
    config = Config()
    config.train.truncated = "penalise"
    assert assemble(store, round_, config).rewards == [0.0, 0.5]


def test_masking_lets_no_penalty_for_a_trick_lapse(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    play(store, round_, 1.0, ending="turns", tamper=True)
    play(store, round_, 1.0)
    config = Config()
    config.train.truncated, config.verify.tamper = "mask", "penalise"
    assert assemble(store, round_, config).rewards == [0.0, 1.0]


def test_a_trial_that_forked_weighs_as_one(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    # The second call shares the first one's prompt only: two leaves, three sampled ids each.
    play(store, round_, 1.0, recorded=[call(1), call(2, parent=1, shared=2)])
    play(store, round_, 0.0)
    out = assemble(store, round_, Config())
    weights = [segment.weight for segment in out.segments]
    assert weights == [0.5, 0.5, 1.0]
    assert sum(int(segment.mask.sum()) for segment in out.segments) == 9


def test_or_its_segments_weigh_the_same(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    short = {"completion_ids": np.array([3]), "logprobs": np.array([-0.5])}
    play(store, round_, 1.0, recorded=[call(1), call(2, parent=1, shared=2, **short)])
    play(store, round_, 0.0)
    config = Config()
    assert [segment.weight for segment in assemble(store, round_, config).segments] == [0.75, 0.25, 1.0]
    config.train.objective.segment_weight = "equal"
    assert [segment.weight for segment in assemble(store, round_, config).segments] == [0.5, 0.5, 1.0]


def test_a_graded_trial_that_sampled_nothing_moves_the_baseline_and_trains_nothing(store: Store) -> None:
    """agentcore-rl-toolkit#122: such a trial went in as one made-up token with mask 1."""
    round_ = begin(store, ["a"], 2)
    refused = call(1, kind="rejected", completion_ids=np.array([], np.int32), logprobs=None, fate="abandoned")
    silent = play(store, round_, 0.0, recorded=[refused])
    play(store, round_, 1.0)
    config = Config()
    config.train.objective.advantage = "centred"
    out = assemble(store, round_, config)
    assert [(segment.trial_id != silent, segment.advantage) for segment in out.segments] == [(True, 0.5)]
    assert [(row.trial_id, row.tokens) for row in out.rows if row.dropped == "it sampled nothing"] == [(silent, 0)]


def test_what_another_policy_sampled_is_left_out(store: Store) -> None:
    """One of two sub-agents of a policy before: its tokens stay out, and the other segment is the trial's own."""
    round_ = begin(store, ["a"], 2)
    play(store, round_, 1.0, recorded=[call(1), call(2, parent=1, shared=2, policy_version=7)])
    play(store, round_, 0.0)
    out = assemble(store, round_, Config())
    assert [(segment.weight, int(segment.mask.sum())) for segment in out.segments] == [(1.0, 3), (1.0, 3)]
    assert [row.dropped for row in out.rows if row.dropped] == ["segment of call 2: sampled from policy 7, not 0"]


ODD = {
    "rounded up": ({"logprobs": np.array([-0.5, 5e-4, -1.0])}, ""),
    "above 0": ({"logprobs": np.array([-0.5, 0.1, -1.0])}, "segment of call 1: call 1: a log-prob is above zero"),
    "not finite": ({"logprobs": np.array([-0.5, np.nan, -1.0])}, "segment of call 1: call 1: a log-prob is not finite"),
    "no prompt": (
        {"added_prompt_ids": np.array([], np.int32), "prompt_tokens": 0},
        "segment of call 1: call 1: nothing stands before its first sampled id",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_one_odd_segment_is_dropped_and_never_blocks_the_round(store: Store, name: str) -> None:
    """What assembly lets through, the trainer takes."""
    odd, reason = ODD[name]
    round_ = begin(store, ["a"], 3)
    play(store, round_, 1.0, recorded=[call(1, **odd)])
    for reward in (0.0, 1.0):
        play(store, round_, reward)
    out = assemble(store, round_, Config())
    check(out.segments, vocabulary=6)
    assert [row.dropped for row in out.rows if row.dropped] == ([reason] if reason else [])
    assert len(out.segments) == (2 if reason else 3)


def test_a_lonely_member_is_skipped_with_its_reason(store: Store) -> None:
    round_ = begin(store, ["a"], 1)
    play(store, round_, 1.0)
    out = assemble(store, round_, Config())
    assert not out.segments
    assert [row.dropped for row in out.rows] == ["fewer than two graded in its group"]


def test_scripted_tokens_never_reach_an_objective(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    play(store, round_, 1.0, recorded=[call(1, sampler="script")])
    play(store, round_, 0.0, recorded=[call(1, sampler="script")])
    out = assemble(store, round_, Config())
    assert not out.segments
    assert out.excluded == {"sampled by script": 6}
    taught = assemble_demonstrations(store, round_)
    assert [segment.sampler for segment in taught.segments] == ["script", "script"]


def test_rejection_sampling_takes_what_the_policy_solved(store: Store) -> None:
    """Not what it did not solve, or got paid for by a trick; and a script's tokens are not its own."""
    round_ = begin(store, ["a", "b"], 3)
    solved = play(store, round_, 1.0)
    scripted = play(store, round_, 1.0, recorded=[call(1, sampler="script")])
    for reward, tamper in ((0.0, False), (0.5, False), (1.0, True), (None, False)):
        play(store, round_, reward, tamper=tamper)
    out = assemble_solved(store, [round_])
    assert [(segment.trial_id, segment.sampler) for segment in out.segments] == [(solved, "policy")]
    assert [(row.trial_id, row.tokens) for row in out.rows] == [(solved, 3), (scripted, 0)]


def test_an_unfinished_round_is_refused(store: Store) -> None:
    round_ = begin(store, ["a"], 2)
    play(store, round_, 1.0)
    with pytest.raises(TrainerError, match="1 trials to run") as caught:
        assemble(store, round_, Config())
    assert caught.value.fault == "user"


def test_shuffled_rewards_are_as_many_and_given_to_whoever(store: Store) -> None:
    round_ = begin(store, ["a", "b"], 4)
    earned = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    for reward in earned:
        play(store, round_, reward)
    config = Config()
    config.train.shuffle_rewards = True
    out = assemble(store, round_, config)
    assert sorted(out.rewards) == sorted(earned) and out.rewards != earned
    assert out.groups["ok"] == 2
    assert assemble(store, round_, config).rewards == out.rewards
    assert {verdict["reward"] for verdict in verdicts.graded(store, round_.id)[:4]} == {1.0}
