"""Round after round: another learning rate takes effect and is logged; what the retention rule keeps and lets go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lego.config.fields import flat, tags
from lego.config.schema import Config, LoraSection
from lego.errors import TrainerError
from lego.rollout.next import train_round_now
from lego.rollout.run import Run
from lego.rundb import calls, catalogue, meta, rounds, training
from lego.rundb.catalogue import TaskEntry
from lego.rundb.store import Store
from lego.trainer.advance import teach_round, train_round
from tests.trainer.test_assemble import call, play
from tests.trainer.test_killed import config, play_round, played


@pytest.fixture
def train(tiny_policy, tmp_path) -> Callable[..., Store]:
    def run(rates: list[float], change: Callable[[Config], None] = lambda made: None) -> Store:
        """A round and a step for each learning rate, each in a command of its own."""
        played(tmp_path, tiny_policy).close()
        for number, rate in enumerate(rates, start=1):
            store = Store.open(tmp_path / "run.db")
            made = config(0)
            made.run.name, made.policy.model = "x", "tiny"
            made.train.optimizer.lr, made.train.minibatches = rate, 1
            change(made)
            meta.settle_config(store, flat(made), tags())
            if number > 1:
                policy = catalogue.policy(store)
                assert policy
                play_round(store, policy, number)
            round_ = rounds.latest(store, "train")
            assert round_ and round_.open
            asyncio.run(train_round(store, round_, made, tmp_path / "policies", lambda done, total: None))
            if number < len(rates):
                store.close()
        return store

    return run


def test_another_learning_rate_takes_effect_at_once_and_is_logged(train):
    """The moments and the count of steps go on."""
    store = train([1e-3, 1e-3, 2e-4])
    assert [step["metrics"]["step/lr"] for step in training.steps(store)] == [1e-3, 1e-3, 2e-4]
    assert [event["text"] for event in meta.events(store)] == ["train.optimizer.lr: 0.001 -> 0.0002"]
    newest = catalogue.policy(store)
    assert newest
    notes = json.loads((Path(newest.path) / "trainer.json").read_text())
    assert (notes["optimizer_steps"], notes["train"]["optimizer"]["lr"], notes["parent"]) == (3, 2e-4, 2)
    store.close()


def test_another_rank_begins_a_new_optimizer_and_the_run_says_so(train):
    ranks = iter([4, 4, 8])
    store = train([1e-3] * 3, lambda made: setattr(made.train, "lora", LoraSection(rank=next(ranks), alpha=8.0)))
    newest = catalogue.policy(store)
    assert newest and json.loads((Path(newest.path) / "trainer.json").read_text())["optimizer_steps"] == 3
    assert torch.load(Path(newest.path) / "optimizer.pt", weights_only=True)["steps"] == 1
    assert {event["text"] for event in meta.events(store)} == {
        "train.lora.rank: 4 -> 8",
        "step 3: a new optimizer begins: train.lora was rank 4, alpha 8, all layers and is rank 8, alpha 8, all layers",
    }
    store.close()


@pytest.mark.parametrize(("keep", "gone"), [(0, []), (1, [1, 2])])
def test_checkpoints_beyond_the_rule_go_and_the_first_and_the_newest_stay(train, tiny_policy, keep, gone):
    store = train([1e-3] * 4, lambda made: setattr(made.retention, "policies", keep))
    rows = catalogue.policies(store)
    assert [row["version"] for row in rows if row["removed_at"] is not None] == gone
    assert [row["version"] for row in rows if not Path(row["path"]).exists()] == gone
    assert tiny_policy.is_dir()
    store.close()


def test_a_policy_that_is_still_to_be_evaluated_stays(train):
    store = train([1e-3] * 2)
    rounds.open_round(store, "eval", ordinal=1, policy_version=1, tasks=[("a", "h")], samples=1, settings={})
    assert [row["version"] for row in catalogue.removable_policies(store, 0)] == []
    store.close()


@pytest.mark.parametrize("rule", ["keep", "drop"])
def test_token_data_of_a_round_goes_once_it_is_trained(train, rule):
    store = train([1e-3], lambda made: setattr(made.retention, "tokens", rule))
    (round_,) = rounds.all_rounds(store)
    assert not round_.open
    assert calls.has_tokens(store, round_.id) is (rule == "keep")
    store.close()


def test_a_round_of_a_policy_before_teaches_nothing(tiny_policy, tmp_path):
    """Its gap may be within the gate, and what was sampled is another policy's all the same."""
    store = played(tmp_path, tiny_policy)
    catalogue.add_policy(store, parent=0, path=str(tiny_policy), digest="e", made_by="sft")
    (round_,) = rounds.all_rounds(store)
    outcome = asyncio.run(train_round(store, round_, config(0), tmp_path / "policies", lambda done, total: None))
    assert (outcome.status, outcome.policy) == ("skipped", None)
    assert outcome.reason == "no trainable trial: sampled from policy 0, and policy 1 is the newest"
    assert not rounds.get(store, round_.id).open
    store.close()


def test_a_round_that_is_left_out_whole_says_why(tiny_policy, tmp_path):
    store = played(tmp_path, tiny_policy, rewards=[0.0])
    (round_,) = rounds.all_rounds(store)
    made = config(0)
    made.train.objective.name = "dapo"
    outcome = asyncio.run(train_round(store, round_, made, tmp_path / "policies", lambda done, total: None))
    assert outcome.status == "skipped"
    assert outcome.reason.startswith("no trainable trial: its group has no spread (")
    store.close()


def test_nothing_is_taught_while_a_training_round_is_open(tiny_policy, tmp_path):
    """It may have been opened while the demonstrations ran."""
    store = played(tmp_path, tiny_policy)
    made = config(0)
    demo = rounds.open_round(store, "demo", ordinal=1, policy_version=0, tasks=[("a", "h")], samples=1, settings={})
    play(store, demo, 1.0, recorded=[call(1, sampler="script")])
    with pytest.raises(TrainerError, match="training round 1 is open"):
        asyncio.run(teach_round(store, demo, made, tmp_path / "policies", lambda state: None))
    assert not training.steps(store)
    store.close()


def test_no_round_is_begun_while_somebody_teaches(tiny_policy, tmp_path):
    store = Store.open(tmp_path / "run.db")
    catalogue.register_tasks(store, [TaskEntry("a", "train", "a", "test", "", "")])
    catalogue.add_policy(store, parent=None, path=str(tiny_policy), digest="d", made_by="start")
    demo = rounds.open_round(store, "demo", ordinal=1, policy_version=0, tasks=[("a", "h")], samples=1, settings={})
    step = training.begin_step(store, round_id=demo.id, kind="sft", policy_from=0, samples=[])
    run = Run(Config(harness={"h": 1.0}), tmp_path, store, {}, {})
    with pytest.raises(TrainerError, match="lego sft is teaching"):
        train_round_now(run)
    training.end_step(store, step, status="done", reason="", policy_to=0, metrics={})
    assert train_round_now(run).policy_version == 0
    store.close()


def test_the_reference_is_what_the_learning_began_from(tmp_path):
    """Not what is taught in its middle."""
    store = Store.open(tmp_path / "run.db")
    found = []
    for version, made_by in enumerate(["start", "sft", "sft", "train", "sft", "train"]):
        catalogue.add_policy(
            store, parent=version - 1 if version else None, path=str(version), digest="d", made_by=made_by
        )
        found.append(catalogue.reference(store).version)
    assert found == [0, 1, 2, 2, 2, 2]
    store.close()
