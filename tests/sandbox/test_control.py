"""What podman says of a container after its service died as it was to start it, and what follows."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lego.errors import SandboxError
from lego.sandbox.control import start
from lego.sandbox.podman import Podman, Refused, ServiceLost


class Dying:
    """Its service dies at the first start, and refuses the second where `refuses`. `runtime`: a script, whose exit code
    says whether it knows the container."""

    def __init__(self, runtime: str = "false", refuses: bool = False, **state: Any) -> None:
        self.state, self.starts, self.refuses = state, 0, refuses
        self.capabilities, self.env = SimpleNamespace(runtime=runtime, rootless=False), dict(os.environ)

    def request(self, method: str, path: str, **how: Any) -> Any:
        if path.endswith("/start"):
            self.starts += 1
            if self.starts == 1:
                raise ServiceLost("gone")
            if self.refuses:
                raise Refused("it is there")
        return SimpleNamespace(status_code=200, json=lambda: {"State": {"StartedAt": "then", **self.state}})


@pytest.mark.parametrize(
    ("status", "pid", "ended", "starts"),
    [
        ("created", 0, False, 2),
        ("created", 0, True, 1),
        ("running", 7, False, 1),
        ("stopped", 0, True, 1),
        ("exited", 0, False, 1),
    ],
)
def test_a_container_is_started_again_only_where_it_never_was(
    tmp_path: Path, status: str, pid: int, ended: bool, starts: int
) -> None:
    exit_file = tmp_path / "exit"
    if ended:
        exit_file.touch()
    podman = Dying(Status=status, Pid=pid)
    start(cast(Podman, podman), "c", exit_file)
    assert podman.starts == starts


@pytest.mark.parametrize("status", ["created", "initialized"])
def test_where_nobody_knows_it_is_podmans_fault(tmp_path: Path, status: str) -> None:
    """Seen in a soak: its end told and cleared away, and podman starts it anew."""
    podman = Dying(Status=status, Pid=7)
    with pytest.raises(SandboxError, match="died as it started") as caught:
        start(cast(Podman, podman), "c", tmp_path / "exit")
    assert (podman.starts, caught.value.fault) == (1, "infra")


@pytest.mark.parametrize("known_at", [1, 2])
def test_what_podman_did_not_write_down_is_ended(tmp_path: Path, known_at: int) -> None:
    """Seen in a soak: the service died after the runtime had made the container, and `podman rm` left it there. Known
    at once, or only when the second start is refused since the first was still being done."""
    asked = tmp_path / "asked"
    runtime = tmp_path / "runtime"
    runtime.write_text(f'#!/bin/sh\necho "$@" >> {asked}\n[ $(grep -c state {asked}) -ge {known_at} ]\n')
    runtime.chmod(0o755)
    podman = Dying(str(runtime), refuses=True, Status="created", Pid=0)
    with pytest.raises(SandboxError) as caught:
        start(cast(Podman, podman), "c", tmp_path / "exit")
    assert asked.read_text().splitlines() == ["state c"] * known_at + ["delete --force c"]
    assert (podman.starts, caught.value.fault) == (known_at, "infra")
