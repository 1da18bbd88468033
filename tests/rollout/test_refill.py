"""Other tasks join a round for groups that teach nothing: how many, which, once, and never another policy's."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.config.schema import Config
from lego.rollout.next import train_round_now
from lego.rollout.refill import refill, shortage
from lego.rollout.run import Run
from lego.rundb import catalogue, meta, rounds, trials
from lego.rundb.catalogue import TaskEntry
from lego.rundb.rounds import Round
from lego.rundb.store import Store
from lego.trainer.assemble import assemble
from tests.trainer.test_assemble import play

TASKS = [f"task-{n}" for n in range(8)]


def config(tasks: int = 2, refill: int = 3, samples: int = 2) -> Config:
    made = Config(harness={"one": 1.0, "two": 1.0})
    made.rollout.tasks_per_round, made.rollout.refill, made.rollout.samples_per_task = tasks, refill, samples
    return made


@contextmanager
def opened(folder: Path, made: Config) -> Iterator[Run]:
    store = Store.open(folder / "run.db")
    try:
        if not catalogue.task_ids(store, "train"):
            catalogue.register_tasks(store, [TaskEntry(name, "train", name, "test", "", "") for name in TASKS])
            catalogue.add_policy(store, parent=None, path="p", digest="d", made_by="start")
        yield Run(made, folder, store, {}, {})
    finally:
        store.close()


def play_all(run: Run, round_: Round, rewards: dict[str, list[float]]) -> None:
    """Each task's trials get its rewards, in turn; 0 where there are none."""
    waiting = run.store.rows(
        "SELECT task_id, sample FROM trials WHERE round_id = ? AND status = 'pending' ORDER BY attempt DESC, id",
        (round_.id,),
    )
    for row in waiting:
        given_ = rewards.get(row["task_id"], [])
        play(run.store, round_, given_[row["sample"]] if row["sample"] < len(given_) else 0.0)


def tasks_of(run: Run, round_: Round) -> list[str]:
    return [task for task, _ in rounds.tasks_of(run.store, round_.id)]


@pytest.mark.parametrize(("rule", "have"), [("train", 1), ("mask", 0)])
def test_spread_that_masked_trials_make_is_none(tmp_path, rule, have):
    made = config(tasks=1, samples=3)
    made.train.truncated = rule
    with opened(tmp_path, made) as run:
        round_ = train_round_now(run)
        play(run.store, round_, 0.0, ending="timeout")
        for _ in range(2):
            play(run.store, round_, 1.0)
        lacking = shortage(run, round_)
        assert (lacking is None) == bool(have)
        assert assemble(run.store, round_, made).groups["ok"] == have


outcomes = st.dictionaries(st.sampled_from(TASKS), st.sampled_from([[1.0, 0.0], [1.0, 1.0]]))


@given(outcomes, st.integers(1, 4), st.integers(0, 8))
@settings(max_examples=25)
def test_it_ends_with_enough_groups_or_at_a_bound(rewards, wanted, bound):
    """Opened anew after every look, as a killed command does; alike the tasks that join."""
    joined = []
    for anew in (False, True):
        with tempfile.TemporaryDirectory() as name:
            made = config(wanted, bound)
            with opened(Path(name), made) as run:
                round_ = train_round_now(run)
                began = tasks_of(run, round_)
                play_all(run, round_, rewards)
                while lacking := refill(run, round_):
                    assert 0 < len(lacking.tasks) <= lacking.wanted - lacking.have
                    assert refill(run, round_) is None  # its trials are to be run first
                    if anew:
                        run.store.close()
                        run = Run(made, Path(name), Store.open(Path(name) / "run.db"), {}, {})
                    play_all(run, round_, rewards)
                after = tasks_of(run, round_)
                assert after[: len(began)] == began and len(set(after)) == len(after)
                groups = assemble(run.store, round_, made).groups
                enough = groups["ok"] >= wanted
                assert enough or len(after) == min(len(began) + bound, len(TASKS))
                assert groups["ok"] <= max(wanted, len(began))
                assert train_round_now(run).id == round_.id and round_.policy_version == 0
                samples = run.store.rows("SELECT count(*) AS n FROM trials GROUP BY task_id, harness")
                assert [row["n"] for row in samples] == [2] * len(after)
                joined.append(rounds.tasks_of(run.store, round_.id))
                run.store.close()
    assert joined[0] == joined[1]


def test_what_joined_is_an_event_of_the_run(tmp_path):
    with opened(tmp_path, config(refill=8)) as run:
        round_ = train_round_now(run)
        play_all(run, round_, {tasks_of(run, round_)[0]: [1.0, 0.0]})
        lacking = refill(run, round_)
        assert lacking and str(lacking) == "1 of 2 groups have spread"
        (event,) = meta.events(run.store)
        assert event["kind"] == "refill"
        assert event["text"] == f"round 1: 1 of 2 groups have spread; added {lacking.tasks[0][0]}"


def test_a_group_that_faults_left_alone_is_made_up_for(tmp_path):
    """Each trial is tried again first, in the round and from its policy; only then does another task join."""
    made = config(tasks=1, refill=1)
    with opened(tmp_path, made) as run:
        round_ = train_round_now(run)
        play(run.store, round_, 1.0)
        for left in (1, 0):
            trial = trials.claim(run.store, round_.id)
            assert trial and refill(run, round_) is None
            trials.fail(run.store, trial, "infra", "podman died", 2)
            assert trials.unfinished(run.store, round_.id) == left
        lacking = refill(run, round_)
        assert lacking and (lacking.have, len(lacking.tasks)) == (0, 1)
        for reward in (1.0, 0.0):
            play(run.store, round_, reward)
        assert refill(run, round_) is None
        assert assemble(run.store, round_, made).groups == {"skipped": 1, "ok": 1}


@pytest.mark.parametrize(("rule", "short"), [("flag", False), ("penalise", True), ("exclude", True)])
def test_spread_is_that_of_the_rewards_that_count(tmp_path, rule, short):
    made = config(tasks=1, refill=1)
    made.verify.tamper = rule
    with opened(tmp_path, made) as run:
        round_ = train_round_now(run)
        play(run.store, round_, 1.0, tamper=True)
        play(run.store, round_, 0.0)
        assert (shortage(run, round_) is not None) is short
        assert (assemble(run.store, round_, made).groups["ok"] == 0) is short


def test_a_control_with_exchanged_rewards_is_refilled_as_the_run_it_controls(tmp_path):
    made = config(tasks=2, refill=2)
    with opened(tmp_path, made) as run:
        round_ = train_round_now(run)
        play_all(run, round_, {tasks_of(run, round_)[0]: [1.0, 1.0]})
        plain = shortage(run, round_)
        made.train.shuffle_rewards = True
        assert shortage(run, round_) == plain is not None


def test_evaluations_and_closed_rounds_are_left_alone(tmp_path):
    with opened(tmp_path, config()) as run:
        round_ = train_round_now(run)
        play_all(run, round_, {})
        rounds.close_round(run.store, round_.id, "skipped")
        assert refill(run, round_) is None
        evaluation = rounds.open_round(
            run.store, "eval", ordinal=1, policy_version=0, tasks=[(TASKS[0], "one")], samples=1,
            settings={**round_.settings, "tasks": 1},
        )  # fmt: skip
        play(run.store, evaluation, 0.0)
        assert refill(run, evaluation) is None


def test_of_several_workers_one_adds(tmp_path):
    made, workers = config(tasks=2, refill=6), 6
    with opened(tmp_path, made) as run:
        round_ = train_round_now(run)
        play_all(run, round_, {})
        ready = threading.Barrier(workers)

        def add() -> bool:
            with opened(tmp_path, made) as own:
                ready.wait()
                return refill(own, round_) is not None

        with ThreadPoolExecutor(workers) as pool:
            added = [job.result() for job in [pool.submit(add) for _ in range(workers)]]
        assert sorted(added) == [False] * (workers - 1) + [True]
        assert len(tasks_of(run, round_)) == 4
