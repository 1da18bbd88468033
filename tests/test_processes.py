from __future__ import annotations

import os
import subprocess

from lego.processes import descendants, start_time


def test_a_child_in_a_session_of_its_own_is_a_descendant() -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "exec 3<&0; setsid sh -c 'echo ready; read _ <&3; :' & wait"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert shell.stdin and shell.stdout
    try:
        assert shell.stdout.readline() == b"ready\n"
        inner = descendants(shell.pid)
        assert inner and all(os.getsid(pid) != os.getsid(shell.pid) for pid in inner)
        assert shell.pid in descendants(os.getpid())
        assert start_time(shell.pid) is not None
    finally:
        shell.communicate(b"\n")
    assert descendants(shell.pid) == []
    assert start_time(shell.pid) is None
