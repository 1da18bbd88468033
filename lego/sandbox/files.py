"""A container's files from this process: with root directly, without it in podman's user namespace."""

from __future__ import annotations

import os
import pickle
import sys

from lego.sandbox.podman import Podman, run_podman
from lego.sandbox.rootfs import Job, perform


def mounted(podman: Podman, merged: str) -> bool:
    """Whether a container's merged root is mounted, where this process can see that: without root each job mounts it
    for itself."""
    return podman.capabilities.rootless or os.path.ismount(merged)


def mount(podman: Podman, container: str, merged: str) -> None:
    """Have a container's merged root mounted. Raises SandboxError where podman fails."""
    if not mounted(podman, merged):
        podman.request("post", f"/containers/{container}/mount")


def perform_in(podman: Podman, container: str, job: Job) -> object:
    """Do a job on a container's files, from outside. Raises OSError where they cannot be reached."""
    if not podman.capabilities.rootless:
        return perform(job)
    # Only inside the user namespace can the files be reached and the container's mount be seen.
    script = 'podman mount "$1" > /dev/null && exec "$2" -c "from lego.sandbox.rootfs import main; main()"'
    env = {**podman.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = run_podman(env, ["unshare", "sh", "-c", script, "sh", container, sys.executable], input=pickle.dumps(job))
    found = pickle.loads(done.stdout)
    if isinstance(found, OSError):
        raise found
    return found
