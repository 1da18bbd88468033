from __future__ import annotations

from pathlib import Path

import pytest

from lego.sandbox.cgroup import Cgroup


@pytest.mark.parametrize(
    ("files", "memory", "pids", "kills", "refused"),
    [
        (
            {
                "memory.limit_in_bytes": "1048576\n",
                "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
                "pids.max": "64\n",
                "pids.events": "max 5\n",
            },
            1048576,
            64,
            3,
            5,
        ),
        (
            {"memory.max": "2048\n", "memory.events": "low 0\noom 1\noom_kill 1\n", "pids.max": "max\n"},
            2048,
            None,
            1,
            0,
        ),
        ({}, None, None, None, 0),
    ],
)
def test_both_versions_are_read(
    tmp_path: Path, files: dict[str, str], memory: int | None, pids: int | None, kills: int | None, refused: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    group = Cgroup(tmp_path, tmp_path)
    assert (group.memory_limit(), group.pids_limit(), group.oom_kills(), group.pids_refused()) == (
        memory,
        pids,
        kills,
        refused,
    )


def test_a_process_that_is_gone_has_none() -> None:
    assert Cgroup.of(2**22 + 1) == Cgroup(None, None)
