"""A Dockerfile that does not build: its log is named, its trials are the task's fault, the other tasks go on."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.podman


def test_one_bad_dockerfile(project, podman):
    project.task("good")
    project.task("bad", dockerfile="FROM debian:bookworm\nRUN echo half way here && exit 7\n")
    project.write()
    built = project.lego("build-images")
    assert built.code == 1 and "1 of 4 images failed" in built.error
    log = Path(re.search(r"bad: see (\S+)", built.error)[1])
    assert "half way here" in log.read_text()
    rolled = project.lego("rollout")
    assert rolled.code == 0 and "task image bad failed" in rolled.err and str(log) in rolled.err
    assert project.lego("verify").code == 0
    trials = project.trials()
    assert [(t["status"], t["reward"]) for t in trials if t["task_id"] == "good"] == [("finished", 1)] * 2
    bad = [t for t in trials if t["task_id"] == "bad"]
    assert [(t["status"], t["fault"], t["attempt"], t["outcome"]) for t in bad] == [("failed", "task", 1, None)] * 2
    assert all("exit status 7" in t["reason"] and str(log) in t["reason"] for t in bad)
    shown = project.lego("show", str(bad[0]["id"]))
    assert shown.code == 0 and "failed (task)" in shown.out and "exit status 7" in shown.out
    checked = project.lego("verify", "--oracle")
    assert checked.code == 4 and "1 of 2 tasks pass with the solution" in checked.out
    assert re.search(r"^bad: .*the image of bad does not build: .*exit status 7", checked.out, re.MULTILINE)
    assert "1 task does not tell solved from unsolved" in checked.error
    unknown = project.lego("show", "99")
    assert unknown.code == 2
    assert unknown.error == "lego: store: there is no trial 99\n      trials go from 1 to 4"
    status = project.lego("status", env={"COLUMNS": "80"})
    assert "failed 1" in status.out
    # A path cannot be broken.
    assert all(len(line) <= 80 or str(log) in line for line in status.out.splitlines())


def test_no_dockerfile_builds(project, podman):
    project.task("bad", dockerfile="FROM debian:bookworm\nRUN exit 7\n")
    project.write()
    result = project.lego("rollout")
    assert result.code == 1 and "not one trial of the round could be run" in result.error
    assert {(t["status"], t["fault"], t["attempt"]) for t in project.trials()} == {("failed", "task", 1)}


def test_an_image_that_holds_what_the_solution_makes_is_named(project, podman):
    line = "the fix, as a later release has it"
    project.task(
        "late",
        dockerfile=f"FROM debian:bookworm\nRUN mkdir /opt/later && echo '{line}' > /opt/later/fix.py\nWORKDIR /app\n",
        solve=f"#!/bin/sh\necho '{line}' > /app/fix.py\n",
        tests="#!/bin/sh\nif [ -e /app/fix.py ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n",
    )
    project.write()
    checked = project.lego("verify", "--oracle")
    assert checked.code == 0 and "1 of 1 tasks pass with the solution" in checked.out
    assert "late: nothing done: failed, failed; solution: passed, passed (" in checked.out
    assert "/opt/later/fix.py is /app/fix.py as the solution makes it" in checked.out
