"""The stages by hand, side by side, and interrupted: always the rows of one undisturbed loop."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e.running import RunOf, check_attempts, check_database, interrupt, left_behind, outcome_of, slots, until

pytestmark = pytest.mark.podman


def test_stages_by_hand_give_the_rows_of_the_loop(scripted, undisturbed, tmp_path):
    run = RunOf(tmp_path, "by-hand", scripted)
    run.lego("build-images")
    for _ in range(2):
        for stage in ("rollout", "verify", "train", "eval"):
            run.lego(stage)
    assert outcome_of(run) == outcome_of(undisturbed)
    check_database(run)


def test_the_loop_decides_something(undisturbed):
    outcome = outcome_of(undisturbed)
    rewards = {trial["verdict"][0]["reward"] for trial in outcome["trials"].values()}
    assert rewards == {0.0, 1.0}
    assert len(outcome["trials"]) == 2 * 4 * 2 + 2
    assert all(len(trial["calls"]) == 3 for trial in outcome["trials"].values())
    assert [step["status"] for step in outcome["steps"]] == ["skipped", "skipped"]
    assert len(outcome["evals"]) == 1


@contextmanager
def held_at_the_start(run: RunOf) -> Iterator[None]:
    """Whoever opens the run in this block waits at its set-up lock, and all go on together when it ends."""
    run.db.parent.mkdir(parents=True, exist_ok=True)
    with (run.db.parent / ".setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def waiting_for_a_lock(pid: int) -> bool:
    return any("->" in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_two_rollouts_share_a_round_and_do_no_trial_twice(scripted, undisturbed, tmp_path, podman):
    config = {**scripted, "rollout": {**scripted["rollout"], "concurrency": 1}}
    run = RunOf(tmp_path, "shared", config)
    with ExitStack() as stack:
        # Only the start is held, so that neither is done before the other has begun.
        with held_at_the_start(run):
            one, other = run_both = [stack.enter_context(run.started("rollout")) for _ in range(2)]
            until(lambda: all(waiting_for_a_lock(process.pid) for process in run_both), "both at the start")
        seen: dict[int, set[int]] = {process.pid: set() for process in run_both}

        def done() -> bool:
            for process in run_both:
                seen[process.pid] |= set(run.held_by(process))
            return all(process.poll() is not None for process in run_both)

        until(done, "both rollouts done")
        for process in run_both:
            run.ended(process, 0)
    assert seen[one.pid] and seen[other.pid] and not seen[one.pid] & seen[other.pid]
    assert check_attempts(run) == 0
    assert_first_round(run, undisturbed)
    assert left_behind(podman, run) == []


def test_interrupted_once_running_trials_finish(scripted, undisturbed, tmp_path, podman):
    run = RunOf(tmp_path, "once", scripted)
    with run.started("rollout") as process:
        assert until(lambda: len(run.held_by(process)) == 2, "two running trials", process), run.said()
        running = run.held_by(process)
        interrupt(process)
        run.ended(process, 130)
    ended = dict(run.rows("SELECT id, status FROM trials"))
    assert {ended[trial] for trial in running} == {"finished"}
    assert set(ended.values()) == {"finished", "pending"}, "nothing was left to interrupt, or something was lost"
    assert_untouched_where_pending(run)
    assert left_behind(podman, run) == []
    # What is there is verified, though the round is not complete; it cannot be trained.
    run.lego("verify")
    assert run.count("verdicts") == list(ended.values()).count("finished")
    run.lego("train", code=2)
    finish(run, undisturbed)


def test_interrupted_twice_running_trials_go_back_at_once(scripted, undisturbed, tmp_path, podman):
    run = RunOf(tmp_path, "twice", scripted)
    with run.started("rollout") as process:
        assert until(lambda: run.held_by(process), "a running trial", process), run.said()
        interrupt(process)
        assert until(lambda: "finishing the trials" in run.said(), "word of the first interrupt", process), run.said()
        running = run.held_by(process)
        interrupt(process)
        run.ended(process, 130)
    ended = dict(run.rows("SELECT id, status FROM trials"))
    assert "pending" in {ended[trial] for trial in running}
    assert set(ended.values()) <= {"finished", "pending"}
    assert_untouched_where_pending(run)
    assert left_behind(podman, run) == []
    finish(run, undisturbed)


def assert_untouched_where_pending(run: RunOf) -> None:
    for attempts in slots(run).values():
        assert len(attempts) == 1
        row = attempts[0]
        if row["status"] == "pending":
            kept = ("lease_owner", "lease_until", "started_at", "ended_at", "fault", "submission", "output")
            assert [row[name] for name in kept] == [None] * len(kept)
            assert run.count("calls WHERE trial_id = ?", row["id"]) == 0


def finish(run: RunOf, undisturbed: RunOf) -> None:
    run.lego("rollout")
    assert check_attempts(run) == 0
    assert_first_round(run, undisturbed)
    check_database(run)


def assert_first_round(run: RunOf, undisturbed: RunOf) -> None:
    """The trials of round 1 are those of the loop; their verdicts are not asked for."""

    def first(of: RunOf) -> dict:
        trials = outcome_of(of)["trials"]
        return {slot: {**row, "verdict": None} for slot, row in trials.items() if slot[:2] == ("train", 1)}

    assert first(run) == first(undisturbed)


def test_an_interrupted_lesson_ends_at_once_and_is_taken_again(scripted, tmp_path):
    """A step is no trial: it is given up on the first Ctrl-C, and the same command takes it from its beginning."""
    run = RunOf(tmp_path, "lesson", {**scripted, "sft": {"tasks": 4, "epochs": 1_000_000}})
    with run.started("sft") as process:
        until(lambda: run.rows("SELECT 1 FROM train_steps WHERE status = 'open'"), "the step", process)
        interrupt(process)
        run.ended(process, 130)
    assert "the same command begins this part again" in run.said() and "Traceback" not in run.said()
    assert run.rows("SELECT status, policy_to FROM train_steps") == [("open", None)]
    run.lego("sft", "sft.epochs=1")
    assert run.rows("SELECT status, policy_from, policy_to FROM train_steps") == [("done", 0, 1)]
    assert run.rows("SELECT count(*) FROM trials") == [(4,)], "the demonstrations were run once"
