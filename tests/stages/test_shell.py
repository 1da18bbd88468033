"""`lego shell`: what a trial left, in the fresh container of its task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests._tiny import tiny_policy
from tests.faults.conftest import Project

__all__ = ["tiny_policy"]


@pytest.mark.podman
def test_what_a_trial_left_is_there_and_nothing_else(podman: object, tiny_policy: Path, tmp_path: Path) -> None:
    project = Project(tmp_path, str(tiny_policy))
    project.task("one", solve="#!/bin/sh\necho right > /app/answer\necho x > /tmp/elsewhere\n")
    project.write(rollout={"samples_per_task": 1})
    assert project.lego("rollout").code == 0
    looked = project.lego("shell", "1", "--run", "cat answer; ls /tmp /tests; ls /sys/class/net; exit 7")
    assert looked.code == 7 and "right" in looked.out and "elsewhere" not in looked.out
    assert looked.out.split()[-1] == "lo" and "test.sh" not in looked.out
    graded = project.lego("shell", "1", "--tests", "--run", "/tests/test.sh; cat /logs/verifier/reward.txt")
    assert (graded.code, graded.out.strip()) == (0, "1")
    assert "a shell needs a terminal" in project.lego("shell", "1").err
    unknown = project.lego("shell", "99", "--run", "true")
    assert unknown.code == 2 and "trial 99 is not in this run" in unknown.error
    assert project.rows("SELECT * FROM verdicts") == []
    left = podman.cli("ps", "-aq", "--filter", f"label=lego.run={project.name}")  # type: ignore[attr-defined]
    assert left.stdout.split() == []
