"""The containers.conf and storage.conf of the private store, derived from this host."""

from __future__ import annotations

import os
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from lego.sandbox.paths import StorePaths

_ULIMIT = 16384
_INITS = ("/usr/libexec/podman/catatonit", "/usr/lib/podman/catatonit", "/usr/bin/catatonit")


@dataclass(frozen=True)
class HostConf:
    """One way of running podman here, to be proven by a probe.

    `runtime` is the path of the OCI runtime; `mount_program` is empty for the kernel's own overlay.
    """

    runtime: str
    cgroup_manager: str
    mount_program: str
    nofile: int
    nproc: int


def candidates(runtime: str) -> list[HostConf]:
    """What may work here, the likeliest first. `runtime` is `auto`, a name on PATH, or a path."""
    names = ["crun", "runc"] if runtime == "auto" else [runtime]
    runtimes = [path for path in (_find(name) for name in names) if path]
    managers = ["systemd", "cgroupfs"] if _systemd() else ["cgroupfs"]
    programs = [""]
    fuse = _find("fuse-overlayfs")
    if fuse and os.access("/dev/fuse", os.R_OK | os.W_OK):
        programs.append(fuse)
    nofile, nproc = _ulimit(resource.RLIMIT_NOFILE), _ulimit(resource.RLIMIT_NPROC)
    return [
        HostConf(path, manager, program, nofile, nproc)
        for program in programs
        for manager in managers
        for path in runtimes
    ]


def environment(paths: StorePaths, conf: Path) -> dict[str, str]:
    """The environment podman runs in: this process's, less what would point it at another store or service."""
    env = {
        key: value
        for key, value in os.environ.items()
        if key
        not in (
            "CONTAINER_HOST",
            "CONTAINER_CONNECTION",
            "CONTAINERS_CONF_OVERRIDE",
            "STORAGE_DRIVER",
            "STORAGE_OPTS",
            "NOTIFY_SOCKET",
        )
    }
    env["CONTAINERS_CONF"] = str(conf / "containers.conf")
    env["CONTAINERS_STORAGE_CONF"] = str(conf / "storage.conf")
    if os.geteuid() != 0:
        env.setdefault("XDG_RUNTIME_DIR", str(paths.run))
    return env


def write(paths: StorePaths, conf: HostConf, folder: Path) -> None:
    """Write the two files into `folder`; readers never see half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    init = next((path for path in _INITS if os.access(path, os.X_OK)), "")
    # Locks in files belong to this store alone; the default, one shared-memory segment per user, would be freed
    # under the feet of the user's own podman, and runs out at 2048.
    containers = [
        "[containers]",
        f'default_ulimits = ["nofile={conf.nofile}:{conf.nofile}", "nproc={conf.nproc}:{conf.nproc}"]',
        *([f'init_path = "{init}"'] if init else []),
        "[engine]",
        f'runtime = "{conf.runtime}"',
        f'cgroup_manager = "{conf.cgroup_manager}"',
        'events_logger = "file"',
        'lock_type = "file"',
        "exit_command_delay = 3",
        f'tmp_dir = "{paths.tmp}"',
        "[engine.runtimes]",
        f'{Path(conf.runtime).name} = ["{conf.runtime}"]',
    ]
    storage = [
        "[storage]",
        'driver = "overlay"',
        f'graphroot = "{paths.graph}"',
        f'rootless_storage_path = "{paths.graph}"',
        f'runroot = "{paths.runroot}"',
        *(["[storage.options.overlay]", f'mount_program = "{conf.mount_program}"'] if conf.mount_program else []),
    ]
    for name, lines in (("containers.conf", containers), ("storage.conf", storage)):
        text = "\n".join(lines) + "\n"
        target = folder / name
        if target.exists() and target.read_text() == text:
            continue
        fresh = folder / f".{name}.{os.getpid()}"
        fresh.write_text(text)
        fresh.replace(target)


def init_available() -> bool:
    """Whether podman's init (catatonit) is installed."""
    return any(os.access(path, os.X_OK) for path in _INITS)


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin:/usr/local/sbin")


def _systemd() -> bool:
    if not Path("/run/systemd/system").exists():
        return False
    if os.geteuid() == 0:
        return True
    return Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}"), "bus").exists()


def _ulimit(kind: int) -> int:
    """A limit this user may set without CAP_SYS_RESOURCE."""
    hard = resource.getrlimit(kind)[1]
    return _ULIMIT if hard == resource.RLIM_INFINITY else min(hard, _ULIMIT)
