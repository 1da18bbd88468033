"""`lego check --harness` as a command: real binaries in real sandboxes, every sampled token proven."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest

from lego.sandbox.reaper import RUN

pytestmark = pytest.mark.podman

HARNESSES = ("tiny-agent", "mini-swe-agent", "claude-code")


def start(folder: Path, *harnesses: str) -> subprocess.Popen[str]:
    """`lego check` without a config; what it makes lies in `folder`."""
    asked = [word for name in harnesses for word in ("--harness", name)]
    return subprocess.Popen(
        [Path(sysconfig.get_path("scripts")) / "lego", "check", *asked, "--scenario", "plain", "--json"],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_each_harness_solves_the_task_and_every_token_is_proven(podman, tmp_path):
    with start(tmp_path, *HARNESSES) as process:
        out, err = process.communicate()
    assert process.returncode == 0, (err, out)
    reports = json.loads(out)
    assert [report["harness"] for report in reports] == list(HARNESSES)
    for report in reports:
        captured = report["captured"]
        assert report["outcome"] == "passed" and report["failures"] == []
        assert captured["calls"] == 4 and captured["sampled"] == captured["in_loss"] > 100
        assert captured["retokenised"] == 0 and 0 < captured["gap"] < 1e-4
    assert list(tmp_path.glob("lego-*")) == []


def test_ctrl_c_leaves_nothing_behind(podman, tmp_path):
    with start(tmp_path, "tiny-agent") as process:
        assert process.stderr is not None
        while "tiny-agent · plain" not in (line := process.stderr.readline()):
            assert line, "it ended before a trial began"
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert list(tmp_path.glob("lego-*")) == []
    query = {"all": "true", "filters": json.dumps({"label": [f"{RUN}=tiny-agent-plain"]})}
    assert podman.request("get", "/containers/json", params=query).json() == []
