"""What a container is asked for: the raw create request, confined and limited.

podman-py's own `create` drops several of these silently, so the body is written here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lego.errors import SandboxError
from lego.sandbox import reaper
from lego.sandbox.podman import Podman
from lego.sandbox.probe import MAP_SIZE, MAP_START
from lego.tasks.task import File, Healthcheck

_LOG_SIZE = 64 << 20
_SHM_SIZE = 64 << 20


@dataclass(frozen=True)
class Limits:
    """Bytes, processes and CPUs a container may use. `file_size` bounds one file, `disk` all that it writes."""

    memory: int = 512 << 20
    pids: int = 128
    cpus: float = 1.0
    file_size: int = 256 << 20
    disk: int = 256 << 20


@dataclass(frozen=True)
class Mount:
    """A folder of the host, read-only in the container."""

    source: str
    target: str


@dataclass(frozen=True)
class ImageMount:
    """An image's files, read-only in the container."""

    image: str
    target: str


@dataclass(frozen=True)
class BoxSpec:
    """A container before it exists.

    `workspace`: absolute paths laid over the image at start. `user`, `workdir` empty mean the image's own.
    `run_id`, `trial` and `labels` let a person, and the reaper, tell containers apart. `capabilities`: what root may
    do inside; none for an agent. `health`: what must be good before the command begins. `several`: it is
    for more than one command, one after the other.
    """

    image: str
    limits: Limits = field(default_factory=Limits)
    labels: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    image_mounts: Sequence[ImageMount] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    workdir: str = ""
    workspace: Mapping[str, File] = field(default_factory=dict)
    run_id: str = ""
    trial: str = ""
    capabilities: Sequence[str] = ()
    health: Healthcheck | None = None
    several: bool = False


def create_body(
    podman: Podman,
    spec: BoxSpec,
    name: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    user: str,
    terminal: bool = False,
) -> str:
    """The JSON of a libpod create request. Raises SandboxError when the image is not there."""
    capabilities, limits = podman.capabilities, spec.limits
    mounts = [_bind(mount.source, mount.target) for mount in spec.mounts]
    body: dict[str, Any] = {
        "name": name,
        "image": spec.image,
        "command": list(argv),
        "entrypoint": [],
        "env": {**spec.env, **env},
        "httpproxy": False,
        "labels": {
            reaper.APP: "lego",
            reaper.OWNER: reaper.Owner.current().tag,
            reaper.RUN: spec.run_id,
            reaper.TRIAL: spec.trial,
            **spec.labels,
        },
        "cap_drop": ["all"],
        "cap_add": list(spec.capabilities),
        "no_new_privileges": True,
        "netns": {"nsmode": "none"},
        "hostname": "sandbox",
        "init": capabilities.init,
        "systemd": "false",
        "stop_timeout": 0,
        "image_volume_mode": "ignore",
        "shm_size": _SHM_SIZE,
        "log_configuration": {"driver": "k8s-file", "size": _LOG_SIZE},
        # Naming one limit drops every default, and a limit above the host's own is refused.
        "r_limits": [
            _rlimit("NOFILE", capabilities.nofile),
            _rlimit("NPROC", capabilities.nproc),
            _rlimit("FSIZE", limits.file_size),
            _rlimit("CORE", 0),
        ],
        "mounts": mounts,
        "terminal": terminal,
        "stdin": terminal,
    }
    if user:
        body["user"] = user
    if spec.workdir:
        body["work_dir"] = spec.workdir
    if capabilities.limits:
        body["resource_limits"] = {
            "memory": {"limit": limits.memory, "swap": limits.memory},
            "pids": {"limit": limits.pids},
            "cpu": {"quota": int(limits.cpus * 100_000), "period": 100_000},
        }
    if capabilities.user_namespace:
        mapping = [{"container_id": 0, "host_id": MAP_START, "size": MAP_SIZE}]
        body["userns"] = {"nsmode": "private"}
        body["idmappings"] = {"UIDMap": mapping, "GIDMap": mapping, "HostUIDMapping": False, "HostGIDMapping": False}
        # The engine's own image mounts fail under an id mapping.
        mounts += [_bind(str(podman.mount_image(each.image)), each.target) for each in spec.image_mounts]
    else:
        body["image_volumes"] = [
            {"source": each.image, "destination": each.target, "rw": False} for each in spec.image_mounts
        ]
    return json.dumps(body)


def _bind(source: str, target: str) -> dict[str, Any]:
    return {
        "type": "bind",
        "source": source,
        "destination": target,
        "options": ["ro", "rbind", "rprivate", "nosuid", "nodev"],
    }


def _rlimit(kind: str, value: int) -> dict[str, Any]:
    return {"type": kind, "soft": value, "hard": value}


def absolute(path: str) -> str:
    """A path inside a container, without detours. Raises SandboxError (fault task) for any other."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise SandboxError(f"{path!r} is not an absolute path inside a container", fault="task")
    return os.path.normpath(path)
