"""Reading a container's control group from outside: what is enforced, and whether the kernel killed for memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cgroup:
    """The control group of one process; version 1, 2 and the hybrid of both."""

    memory: Path | None
    pids: Path | None

    @classmethod
    def of(cls, pid: int) -> Cgroup:
        """The group of `pid`; empty where the process is gone or belongs to the host's root group."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return cls(None, None)
        found: dict[str, Path] = {}
        for line in lines:
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(",") if controllers else [""]:
                folder = _ROOT / controller / path.lstrip("/")
                if path != "/" and folder.is_dir():
                    found[controller] = folder
        unified = found.get("")
        return cls(found.get("memory", unified), found.get("pids", unified))

    @classmethod
    def of_container(cls, container: str, pid: int | None) -> Cgroup:
        """The group of a container's first process, or where podman puts it if that process has already ended."""
        group = cls.of(pid) if pid is not None else cls(None, None)
        if group != cls(None, None):
            return group
        places = (f"libpod_parent/libpod-{container}", f"machine.slice/libpod-{container}.scope")
        return cls(*(_first_folder([_ROOT / kind / place for place in places for kind in (controller, "")])
                     for controller in ("memory", "pids")))  # fmt: skip

    def memory_limit(self) -> int | None:
        """Bytes, or None where nothing is enforced."""
        return _number(self.memory, "memory.limit_in_bytes") or _number(self.memory, "memory.max")

    def pids_limit(self) -> int | None:
        """Processes, or None where nothing is enforced."""
        return _number(self.pids, "pids.max")

    def oom_kills(self) -> int | None:
        """Processes the kernel killed for memory; None where the group is gone."""
        for name in ("memory.oom_control", "memory.events"):
            fields = _fields(self.memory, name)
            if "oom_kill" in fields:
                return fields["oom_kill"]
        return None

    def pids_refused(self) -> int:
        """How often a new process was refused."""
        return _fields(self.pids, "pids.events").get("max", 0)


def _first_folder(candidates: list[Path]) -> Path | None:
    return next((folder for folder in candidates if folder.is_dir()), None)


def _text(folder: Path | None, name: str) -> str:
    if folder is None:
        return ""
    try:
        return (folder / name).read_text()
    except OSError:
        return ""


def _number(folder: Path | None, name: str) -> int | None:
    text = _text(folder, name).strip()
    return int(text) if text.isdigit() else None


def _fields(folder: Path | None, name: str) -> dict[str, int]:
    pairs = (line.split() for line in _text(folder, name).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
