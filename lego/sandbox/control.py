"""Starting a container, and what podman says of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lego.errors import SandboxError, Unfit
from lego.sandbox.podman import Podman, Refused, ServiceLost
from lego.sandbox.watch import State

_NOT_BEGUN = ("created", "configured", "initialized")


def start(podman: Podman, container: str, exit_file: Path, *, again: bool = False) -> None:
    """Start a container that does not run. `exit_file`: where its monitor will say that it has ended. `again`: it has
    run before, and its earlier end is no longer told there. Raises SandboxError where podman fails."""
    before = ""
    if again:
        exit_file.unlink(missing_ok=True)
        before = _shown(podman, container).get("StartedAt", "")
    for left in (2, 1, 0):
        try:
            podman.request("post", f"/containers/{container}/start", allow=(304,), tries=1)
            return
        except ServiceLost:
            # It may have started the container before it died; one that has ended meanwhile would run again.
            now = _shown(podman, container)
            waiting = now and (now["Status"] in _NOT_BEGUN or now["StartedAt"] == before)
            if not waiting or exit_file.exists():
                return
            # It was made ready, and its end may have been told and cleared away: nobody knows whether it ran.
            if now["Pid"] or _end_unrecorded(podman, container):
                raise SandboxError(f"podman's service died as it started container {container[:12]}") from None
            if not left:
                raise
        except Refused:
            if left < 2:
                _end_unrecorded(podman, container)
            raise


def start_again(podman: Podman, container: str, exit_file: Path, fresh_one_starts: Callable[[], bool]) -> None:
    """Start a container that has run before, in what its earlier command left.

    Raises Unfit where that is why nothing starts in it, as when a folder that podman mounts into was exchanged for a
    link: only what is refused twice while `fresh_one_starts` in between is not the machine's doing.
    """
    try:
        start(podman, container, exit_file, again=True)
    except Refused as error:
        if not fresh_one_starts():
            raise
        try:
            start(podman, container, exit_file, again=True)
        except Refused:
            raise Unfit(f"nothing starts in what is left of container {container[:12]}: {error.message}") from error


def state(podman: Podman, container: str) -> State:
    """The exit code as podman itself tells it, or that there is none."""
    response = podman.request("get", f"/containers/{container}/json", allow=(404, 500))
    if response.status_code >= 400:
        if response.status_code == 404 or "no such container" in response.text:
            return "gone"
        raise SandboxError(f"podman cannot say how container {container[:12]} is: {response.text[:300]}")
    told = response.json()["State"]
    # While it is being stopped the exit code is 0, and stands for none.
    return "running" if told["Running"] or told["Status"] == "stopping" else int(told["ExitCode"])


def _end_unrecorded(podman: Podman, container: str) -> bool:
    """Whether the runtime has a container that podman's record says was not begun; it is ended. Podman itself would
    remove no more than the record, and what waits in the container for its start would stay for ever."""
    if _runtime(podman, "state", container):
        return False
    _runtime(podman, "delete", "--force", container)
    return True


def _runtime(podman: Podman, *args: str) -> int:
    """The exit code of the runtime, asked without podman."""
    argv = [podman.capabilities.runtime, *args]
    if podman.capabilities.rootless:
        argv = ["podman", "unshare", *argv]
    return subprocess.run(argv, env=dict(podman.env), stdin=subprocess.DEVNULL, capture_output=True).returncode


def _shown(podman: Podman, container: str) -> dict[str, Any]:
    """The state of a container in podman's words; nothing where it is gone."""
    response = podman.request("get", f"/containers/{container}/json", allow=(404,))
    return dict(response.json()["State"]) if response.status_code != 404 else {}
