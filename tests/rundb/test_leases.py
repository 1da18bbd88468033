"""Claims, fencing and take-over, with real processes that are really killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lego.errors import LeaseLost
from lego.rundb import owner, pauses, rounds, training, trials, verdicts
from lego.rundb.store import Store
from tests.rundb.conftest import fill

CLAIM_AND_HANG = """
import sys, time
from pathlib import Path
from lego.rundb import trials
from lego.rundb.store import Store
store = Store.open(Path(sys.argv[1]))
print(trials.claim(store, 1).id, flush=True)
sys.stdin.read()
"""

CLAIM_ALL = """
import sys
from pathlib import Path
from lego.rundb import trials
from lego.rundb.store import Store
store = Store.open(Path(sys.argv[1]))
sys.stdin.readline()
while (trial := trials.claim(store, 1)) is not None:
    print(trial.id, flush=True)
    trials.finish(store, trial, ending="exit", reason="", exit_code=0, seconds=0, waited=0, summary={}, output=b"",
                  submission=b"", submission_digest="", submission_note={})
"""


def finish(store: Store, trial: trials.Trial) -> None:
    trials.finish(
        store,
        trial,
        ending="exit",
        reason="",
        exit_code=0,
        seconds=1.0,
        waited=0.5,
        summary={},
        output=b"out",
        submission=b"s",
        submission_digest="d",
        submission_note={},
    )


def test_two_processes_share_the_work_and_do_nothing_twice(store: Store) -> None:
    fill(store, tasks=10, samples=10)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM_ALL, str(store.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    done = [line for worker in workers for line in worker.communicate()[0].split()]
    assert len(done) == 100
    assert len(set(done)) == 100


def test_a_killed_worker_loses_its_trial_at_once_and_the_next_attempt_opens(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    worker = subprocess.Popen(
        [sys.executable, "-c", CLAIM_AND_HANG, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout
    claimed = int(worker.stdout.readline())
    assert trials.reclaim(store, round_.id, 3) == 0, "a live worker keeps its trial"
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    assert trials.reclaim(store, round_.id, 3) == 1
    row = trials.trial(store, claimed)
    assert row and (row["status"], row["fault"], row["ending"]) == ("failed", "infra", "lease")
    again = trials.claim(store, round_.id)
    assert again and (again.sample, again.attempt) == (0, 2)


def test_a_worker_that_lost_its_lease_writes_nothing(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    trial = trials.claim(store, round_.id)
    assert trial
    store.execute("UPDATE trials SET lease_until = 0")
    assert trials.reclaim(store, round_.id, 3) == 1
    with pytest.raises(LeaseLost):
        finish(store, trial)
    with pytest.raises(LeaseLost):
        trials.fail(store, trial, "infra", "late", 3)
    row = trials.trial(store, trial.id)
    assert row and row["submission"] is None


def test_attempts_are_capped_and_the_slot_stays_empty(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    for _ in range(3):
        trial = trials.claim(store, round_.id)
        assert trial
        trials.fail(store, trial, "infra", "podman died", 3)
    assert trials.claim(store, round_.id) is None
    assert trials.unfinished(store, round_.id) == 0
    assert trials.infra_streak(store, round_.id) == ["podman died"] * 3


class Hands:
    """The clock of the database, which the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.time = 1000.0
        for module in (pauses, trials, verdicts):
            monkeypatch.setattr(module, "now", lambda: self.time)


def test_an_outage_of_a_moment_uses_up_no_attempt(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was tried comes again later each time, and after all that was not tried yet."""
    hands, round_ = Hands(monkeypatch), fill(store, tasks=1, samples=3)
    store.pause, tried = 5.0, []
    for _ in range(3):
        trial = trials.claim(store, round_.id)
        assert trial
        tried.append((trial.sample, trial.attempt))
        trials.fail(store, trial, "infra", "podman died", 3)
        hands.time += 0.5
    assert tried == [(0, 1), (1, 1), (2, 1)]
    assert trials.claim(store, round_.id) is None and trials.unfinished(store, round_.id) == 3
    hands.time = 1005.6
    second = [trials.claim(store, round_.id) for _ in range(3)]
    assert [one and (one.sample, one.attempt) for one in second] == [(0, 2), (1, 2), None]
    assert second[0]
    trials.fail(store, second[0], "infra", "podman died", 3)
    hands.time += 24.9
    third = trials.claim(store, round_.id)
    assert third and (third.sample, third.attempt) == (2, 2)
    assert trials.claim(store, round_.id) is None
    hands.time += 0.1
    last = trials.claim(store, round_.id)
    assert last and (last.sample, last.attempt) == (0, 3)


def test_a_killed_workers_trial_is_due_at_once(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    store.pause = 1e6
    assert trials.claim(store, round_.id)
    store.execute("UPDATE trials SET lease_until = 0")
    assert trials.reclaim(store, round_.id, 3) == 1
    again = trials.claim(store, round_.id)
    assert again and again.attempt == 2


def test_a_verification_that_infrastructure_broke_waits_and_comes_last(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hands, round_ = Hands(monkeypatch), fill(store, tasks=1, samples=2)
    store.pause = 5.0
    while (trial := trials.claim(store, round_.id)) is not None:
        finish(store, trial)

    def verified(outcome: str, fault: str) -> int:
        row = verdicts.claim(store, round_.id)
        assert row
        verdicts.record(
            store, row["id"], reward=None, outcome=outcome, detail={"fault": fault}, tamper=[], trust="", log=b"",
            seconds=0.0,
        )  # fmt: skip
        return int(row["id"])

    assert [verified("error", "infra"), verified("error", "infra")] == [1, 2]
    assert verdicts.claim(store, round_.id) is None
    assert verdicts.waiting(store, round_.id) == 2 and verdicts.awaited(store), "they are waited for all the same"
    hands.time += 5
    assert [verified("error", "infra"), verified("error", "task")] == [1, 2]
    assert verified("error", "task") == 2, "a fault of the task's is no outage"
    assert verdicts.claim(store, round_.id) is None
    hands.time += 25
    assert verified("passed", "") == 1
    assert not verdicts.waiting(store, round_.id) and not verdicts.awaited(store)


def test_the_pause_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    hands = Hands(monkeypatch)
    waits = [pauses.later(5.0, tries) - hands.time for tries in range(1, 60)]
    assert waits[:3] == [5, 25, 125] and set(waits[3:]) == {300}


def test_a_policy_fault_opens_no_attempt(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    trial = trials.claim(store, round_.id)
    assert trial
    trials.fail(store, trial, "policy", "crashed", 3)
    assert trials.unfinished(store, round_.id) == 0


def test_a_graceful_stop_gives_the_trial_back(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    trial = trials.claim(store, round_.id)
    assert trial
    trials.release(store, trial)
    again = trials.claim(store, round_.id)
    assert again == trial


def test_verification_is_leased_retried_on_error_and_latest_counts(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    trial = trials.claim(store, round_.id)
    assert trial
    assert verdicts.claim(store, round_.id) is None, "a running trial is not verified"
    finish(store, trial)
    assert verdicts.claim(store, round_.id)
    assert verdicts.claim(store, round_.id) is None, "it is being verified"
    common = {"detail": {}, "tamper": [], "trust": "", "log": b"", "seconds": 0.0}
    verdicts.record(store, trial.id, reward=None, outcome="error", **common)  # type: ignore[arg-type]
    assert verdicts.claim(store, round_.id), "a verifier fault is tried again"
    verdicts.record(store, trial.id, reward=1.0, outcome="passed", **common)  # type: ignore[arg-type]
    assert verdicts.claim(store, round_.id) is None
    with pytest.raises(LeaseLost):
        verdicts.record(store, trial.id, reward=0.0, outcome="failed", **common)  # type: ignore[arg-type]
    verdicts.record(store, trial.id, reward=0.0, outcome="failed", leased=False, **common)  # type: ignore[arg-type]
    assert [row["reward"] for row in verdicts.graded(store, round_.id)] == [0.0]


def test_a_step_left_open_is_taken_over_and_its_samples_replaced(store: Store) -> None:
    round_ = fill(store, tasks=1, samples=1)
    sample = training.SampleRow(1, None, 0, 0.5, 1.0, 10)
    step = training.begin_step(store, round_id=round_.id, kind="rl", policy_from=0, samples=[sample])
    store.execute("UPDATE train_steps SET lease_owner = 'elsewhere/boot/1/1/x', lease_until = 0")
    with pytest.raises(LeaseLost):
        training.end_step(store, step, status="done", reason="", policy_to=None, metrics={})
    assert training.begin_step(store, round_id=round_.id, kind="rl", policy_from=0, samples=[sample]) == step
    assert store.value("SELECT count(*) FROM samples") == 1
    training.end_step(store, step, status="done", reason="", policy_to=None, metrics={"loss": 1.0})
    assert training.steps(store)[0]["metrics"] == {"loss": 1.0}


def test_owner_is_judged_by_host_boot_pid_and_start() -> None:
    mine = owner.new_owner()
    assert not owner.is_dead(mine)
    host, boot, pid, start, nonce = mine.split("/")
    assert owner.is_dead("/".join([host, boot, pid, "1", nonce])), "another process under the same pid"
    assert owner.is_dead("/".join([host, "another-boot", pid, start, nonce]))
    assert not owner.is_dead("/".join(["another-host", boot, "1", "1", nonce])), "no proof about another host"


def test_rounds_use_every_task_before_any_comes_again(tmp_path: Path) -> None:
    ids = [f"t{number}" for number in range(10)]
    seen = [task for ordinal in range(1, 6) for task in rounds.pick_tasks(ids, 7, ordinal, 4)]
    assert sorted(seen[:10]) == sorted(ids)
    assert rounds.pick_tasks(ids, 7, 3, 4) == rounds.pick_tasks(ids, 7, 3, 4)
    assert sorted(rounds.pick_tasks(ids, 7, 1, 0)) == sorted(ids)


def test_opening_a_round_twice_joins_it(store: Store) -> None:
    first = fill(store)
    again = rounds.open_round(store, "train", ordinal=1, policy_version=0, tasks=[], samples=9, settings={})
    assert again.id == first.id
    assert trials.unfinished(store, first.id) == 6
