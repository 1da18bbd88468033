"""A monitor that is started beside a running loop, killed and started again: the loop's rows are those without it."""

from __future__ import annotations

import pytest

from benchmarks.monitor import watch
from tests.e2e.running import RunOf, check_attempts, check_database, outcome_of, until

pytestmark = pytest.mark.podman


def test_a_monitor_killed_and_started_again_leaves_the_loop_alone(scripted, undisturbed, tmp_path):
    run = RunOf(tmp_path, "watched", scripted)
    with run.started("loop") as loop:
        assert until(lambda: run.held_by(loop), "a running trial", loop), run.said()
        with watch(run.file) as first:
            first.process.kill()
            first.process.wait()
        assert loop.poll() is None, "the loop ended before its monitor was killed"
        with watch(run.file) as second:
            run.ended(loop, 0)
            assert second.process.poll() is None, second.said[-2000:]
            second.press("q")
            assert second.process.wait(60) == 0
    assert outcome_of(run) == outcome_of(undisturbed)
    assert check_attempts(run) == 0
    check_database(run)
