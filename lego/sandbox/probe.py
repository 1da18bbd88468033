"""What containers can do on this host, found by starting one.

The probe image holds one 200-byte program that waits for ever, so probing needs neither a registry nor a package.
"""

from __future__ import annotations

import io
import json
import os
import platform
import struct
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lego.errors import SandboxError
from lego.sandbox import hostconf, reaper
from lego.sandbox.cgroup import Cgroup
from lego.sandbox.hostconf import HostConf
from lego.sandbox.paths import StorePaths

VERSION = 2
IMAGE = "localhost/lego-probe:1"
MAP_START, MAP_SIZE = 200_000, 65_536

# pause() for ever on x86-64; ppoll() for ever on AArch64.
_CODE = {
    "x86_64": (62, bytes.fromhex("b8220000000f05ebf7")),
    "aarch64": (183, bytes.fromhex("280980d2000080d2010080d2020080d2030080d2010000d4faffff17")),
}


def first_working(paths: StorePaths, ways: Sequence[HostConf]) -> dict[str, Any]:
    """The first of `ways` in which a container starts, and what it can do there (fields of Capabilities).

    Raises SandboxError with each way's reason when none works.
    """
    reasons: list[str] = []
    for way in ways:
        folder = paths.store / "probe"
        hostconf.write(paths, way, folder)
        env = hostconf.environment(paths, folder)
        reason = _start(env)
        if reason is None:
            return _describe(env, way, tuple(f"passed over: {reason}" for reason in dict.fromkeys(reasons)))
        name = Path(way.runtime).name
        reasons.append(reason if name in reason else f"{name}: {reason}")
    unique = list(dict.fromkeys(reasons))
    raise SandboxError("podman cannot start a container: " + "; ".join(unique), hint=_advice(unique, ways))


def _describe(env: Mapping[str, str], way: HostConf, notes: tuple[str, ...]) -> dict[str, Any]:
    info = json.loads(_podman(env, "info", "--format", "json").stdout)["host"]
    rootless = bool(info["security"]["rootless"])
    limits = _start(env, "--memory", "32m", "--pids-limit", "77", limits=(32 << 20, 77)) is None
    image_mount = _start(env, "--mount", f"type=image,source={IMAGE},destination=/opt/x") is None
    mapping = f"0:{MAP_START}:{MAP_SIZE}"
    user_namespace = not rootless and _start(env, "--uidmap", mapping, "--gidmap", mapping) is None
    return {
        "rootless": rootless,
        "runtime": way.runtime,
        "cgroup_version": info["cgroupVersion"],
        "cgroup_manager": way.cgroup_manager,
        "mount_program": way.mount_program,
        "nofile": way.nofile,
        "nproc": way.nproc,
        "limits": limits,
        "user_namespace": user_namespace,
        "image_mount": image_mount,
        "notes": notes,
    }


def _start(env: Mapping[str, str], *options: str, limits: tuple[int, int] | None = None) -> str | None:
    """Start one confined container. None if it ran (and `limits` hold), else the reason."""
    if _podman(env, "image", "exists", IMAGE).returncode != 0:
        done = _podman(env, "import", "--change", 'ENTRYPOINT ["/wait"]', "-", IMAGE, input=_image())
        if done.returncode != 0:
            return _reason(done)
    container = f"lego-probe-{os.getpid()}-{os.urandom(4).hex()}"
    done = _podman(
        env,
        "run",
        "--detach",
        "--name",
        container,
        "--network",
        "none",
        "--cap-drop",
        "all",
        "--security-opt",
        "no-new-privileges",
        "--pull",
        "never",
        "--label",
        f"{reaper.APP}=lego",
        "--label",
        f"{reaper.OWNER}={reaper.Owner.current().tag}",
        *options,
        IMAGE,
    )
    if done.returncode != 0:
        _podman(env, "rm", "--force", "--ignore", "--time", "0", container)
        return _reason(done)
    try:
        shown = json.loads(_podman(env, "inspect", container).stdout)[0]["State"]
        if not shown["Running"]:
            return f"the probe container ended with {shown['ExitCode']}"
        if limits is not None:
            group = Cgroup.of(shown["Pid"])
            if (group.memory_limit(), group.pids_limit()) != limits:
                return "limits are not enforced"
    finally:
        _podman(env, "rm", "--force", "--time", "0", container)
    return None


def _image() -> bytes:
    """A tar of the one-program root file system for this machine."""
    name = platform.machine()
    if name not in _CODE:
        raise SandboxError(f"no probe program for a {name} machine", hint="x86_64 and aarch64 are supported")
    machine, code = _CODE[name]
    base, size = 0x400000, 64 + 56 + len(code)
    header = (
        b"\x7fELF\x02\x01\x01"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    )
    program = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo("wait")
        entry.mode, entry.size = 0o755, size
        tar.addfile(entry, io.BytesIO(header + program + code))
        for folder in ("proc", "sys", "dev", "tmp", "run", "etc", "opt/x"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
    return buffer.getvalue()


def _podman(env: Mapping[str, str], *args: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(["podman", *args], env=dict(env), input=input, capture_output=True, timeout=120)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"podman {args[0]} did not finish in 120 s while probing this host") from error


def _reason(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    line = lines[-1].strip() if lines else f"exit code {done.returncode}"
    return line.removeprefix("Error: ").removeprefix("error: ")[:300]


def _advice(reasons: Sequence[str], ways: Sequence[HostConf]) -> str:
    text = " ".join(reasons)
    names = {Path(way.runtime).name for way in ways}
    if "cgroups in hybrid mode" in text and "runc" not in names:
        return "install runc (apt install runc) or set sandbox.runtime; details: lego check --only sandbox"
    if "overlay" in text and ("not supported" in text or "invalid argument" in text):
        return "put the store on a local ext4, xfs or btrfs file system: set sandbox.store or LEGO_STORE"
    if "newuidmap" in text or "subuid" in text:
        return f"install uidmap and give this user a range in /etc/subuid and /etc/subgid (user id {os.geteuid()})"
    return "try `podman run` by hand, or another sandbox.runtime; details: lego check --only sandbox"
