"""A refused step throws nothing away: it is taken again once its cause is gone, or given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from lego.config.schema import Config
from lego.errors import GateError, StoreError, TrainerError
from lego.rundb import calls, catalogue, meta, rounds, routing, training, trials
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.trainer.advance import Outcome, give_up, train_round
from lego.trainer.step import Trainer
from tests.trainer._sampled import sample, section
from tests.trainer.test_killed import config, played

pytestmark = pytest.mark.usefixtures("tiny_policy")


def step(store: Store, made: Config) -> Outcome:
    round_ = rounds.latest(store, "train")
    assert round_ and round_.open
    return asyncio.run(train_round(store, round_, made, store.path.parent / "policies", lambda done, total: None))


def refused(folder: Path, policy: Path, reason: str) -> tuple[Store, Round, Config]:
    """A run whose step a gate too tight refused; what is trained on would be dropped."""
    store = played(folder, policy)
    (round_,) = rounds.all_rounds(store)
    first = store.value("SELECT min(id) FROM trials")
    routing.put(store, first, 1, 0, np.zeros((3, 1, 1), np.int16))
    made = config(0)
    made.retention.tokens = "drop"
    made.train.gate.mean_logp_gap = 1e-30
    with pytest.raises(GateError, match=reason):
        step(store, made)
    return store, round_, made


def data(store: Store, round_: Round) -> tuple[bool, bool, bool]:
    """Whether it is open, has its tokens, has its experts."""
    first = store.value("SELECT min(id) FROM trials")
    return rounds.get(store, round_.id).open, calls.has_tokens(store, round_.id), bool(routing.of_trial(store, first))


def test_with_a_wider_gate_it_is_taken_again(tiny_policy, tmp_path):
    store, round_, made = refused(tmp_path, tiny_policy, "mean_logp_gap")
    assert data(store, round_) == (True, True, True)
    with pytest.raises(GateError):  # nothing changed, and nothing is lost
        step(store, made)
    assert training.steps(store)[0]["status"] == "refused"
    made.train.gate.mean_logp_gap = 0.0
    outcome = step(store, made)
    assert outcome.status == "done" and outcome.policy and outcome.policy.version == 1
    assert [row["status"] for row in training.steps(store)] == ["done"]
    assert training.steps(store)[0]["reason"] == ""
    assert len(training.samples_of_trial(store, trials_of(store)[0])) == 1
    assert data(store, round_) == (False, False, False)
    assert sum("was refused" in event["text"] for event in meta.events(store)) == 2
    store.close()


def trials_of(store: Store) -> list[int]:
    return [row["id"] for row in store.rows("SELECT id FROM trials ORDER BY id")]


def test_or_given_up(tiny_policy, tmp_path):
    store, round_, made = refused(tmp_path, tiny_policy, "mean_logp_gap")
    assert give_up(store, round_, made).status == "given up"
    assert data(store, round_) == (False, False, False)
    policy = catalogue.policy(store)
    assert policy and policy.version == 0
    with pytest.raises(StoreError, match="no longer open"):
        training.begin_step(store, round_id=round_.id, kind="rl", policy_from=0, samples=[])
    store.close()


def test_what_was_not_refused_is_not_given_up(tiny_policy, tmp_path):
    store = played(tmp_path, tiny_policy)
    (round_,) = rounds.all_rounds(store)
    with pytest.raises(TrainerError, match="no step of round 1 was refused"):
        give_up(store, round_, config(0))
    assert rounds.get(store, round_.id).open and not trials.unfinished(store, round_.id)
    store.close()


@pytest.mark.parametrize(
    ("dtype", "off", "passes"), [("float32", 0.003, False), ("bfloat16", 0.003, True), ("bfloat16", 0.2, False)]
)
def test_the_default_gate_knows_how_much_rounding_there_is(tiny_policy, dtype, off, passes):
    """Sampled in float32, trained in bfloat16: within the default; other weights' log-probs are not."""
    segments = sample(tiny_policy)
    for segment in segments:
        segment.logprobs[segment.mask] -= off
    report = Trainer(tiny_policy, section(), dtype=dtype).prove(segments)
    assert (report.refused is None) == passes, report.refused
