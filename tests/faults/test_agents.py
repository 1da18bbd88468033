"""Agents that turn against their sandbox: each trial is finished and graded on what it left, never infrastructure."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.podman

MARK = "7919.417"
SOLVED = "#!/bin/sh\necho right > /app/answer\n"
KILLS = """python3 - <<'END'
import os
for pid in filter(str.isdigit, os.listdir('/proc')):
    with open(f'/proc/{pid}/cmdline', 'rb') as line:
        if pid != str(os.getpid()) and b'tiny_agent' in line.read():
            os.kill(int(pid), 9)
END
sleep 1
"""
AGENTS = {
    "fork-bomb": SOLVED + "(bomb() { bomb | bomb & }; bomb) 2> /dev/null\nsleep 1\n",
    "fork-bomb-first": f"#!/bin/sh\n(while :; do sleep {MARK} & done) 2> /dev/null &\n"
    + "sleep 1\necho wrong > /app/answer\n",
    "disk-filler": SOLVED
    + "dd if=/dev/zero of=/app/big bs=1M count=30\ndd if=/dev/zero of=/var/big bs=1M count=30\nsleep 20\n",
    "memory-hog": SOLVED + "python3 -c 'x = bytearray(400 << 20)'\n",
    "memory-army": SOLVED
    + "for i in 1 2 3 4; do python3 -c 'x = bytearray(40 << 20); input()' < /dev/zero & done\nwait\n",
    "harness-killer": SOLVED + KILLS,
    "killer-of-all": "#!/bin/sh\necho wrong > /app/answer\nkill -9 1\nkill -9 -1\n",
    "leaves-a-child": SOLVED + f"setsid sleep {MARK} > /dev/null 2>&1 &\nsleep 0.2\n",
    "breaks-out": SOLVED
    + "for at in /run/lego /opt/harness /opt/harness/lego /sys /proc/sys/kernel; do touch $at/leak; done\n"
    + "mount -t tmpfs none /mnt\n",
}
REWARDS = {name: 0.0 if name in ("fork-bomb-first", "killer-of-all") else 1.0 for name in AGENTS}


def test_agents_against_their_sandbox(project, podman):
    for name, solve in AGENTS.items():
        project.task(name, solve=solve)
    project.write(tasks={"eval": [{"source": "harbor", "path": "tasks"}]})
    before = processes(MARK)
    result = project.lego("eval")
    assert result.code == 0, result.err

    trials = {trial["task_id"]: trial for trial in project.trials()}
    assert len(project.trials()) == len(AGENTS)
    assert {name: (t["status"], t["fault"], t["attempt"]) for name, t in trials.items()} == {
        name: ("finished", None, 1) for name in AGENTS
    }
    assert {name: trial["reward"] for name, trial in trials.items()} == REWARDS
    assert trials["disk-filler"]["ending"] == "disk"
    assert trials["memory-hog"]["summary"]["oom_kills"] >= 1
    assert trials["fork-bomb"]["summary"]["pids_refused"] > 0
    assert trials["harness-killer"]["exit_code"] == trials["killer-of-all"]["exit_code"] == 137
    assert "infra" not in project.lego("status").out

    left = podman.cli("ps", "--all", "--filter", f"label=lego.run={project.name}", "--format", "{{.ID}}")
    assert left.stdout.split() == []
    assert processes(MARK) == before
    assert [path for path in podman.paths.sockets.iterdir() if f"-{result.pid}-" in path.name] == []
    assert sorted(path.name for path in project.folder.iterdir()) == ["lego.yaml", "runs", "tasks"]


def processes(mark: str) -> set[str]:
    found = set()
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in line.read_bytes():
                found.add(line.parent.name)
        except OSError:
            continue
    return found
