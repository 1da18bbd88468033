"""Round after round: another learning rate takes effect and is logged; what the retention rule keeps and lets go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lego.config.fields import flat, tags
from lego.config.schema import Config, LoraSection
from lego.rundb import calls, catalogue, meta, rounds, training
from lego.rundb.store import Store
from lego.trainer.advance import train_round
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
    assert newest and json.loads((Path(newest.path) / "trainer.json").read_text())["optimizer_steps"] == 1
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
