"""What podman says of a container after its service died as it was to start it, and what follows."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lego.errors import SandboxError
from lego.sandbox.control import start
from lego.sandbox.podman import Podman, ServiceLost


class Dying:
    """Its service dies at the first start."""

    def __init__(self, **state: Any) -> None:
        self.state, self.starts = state, 0

    def request(self, method: str, path: str, **how: Any) -> Any:
        if path.endswith("/start"):
            self.starts += 1
            if self.starts == 1:
                raise ServiceLost("gone")
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
