"""The search's end of the line: lives in one sealed container and runs one job after the other.

    worker.py SOCKET

A job is one line of JSON: files to put in place, and tests to run or a command to run as root. Afterwards everything
is as it was. The tests run in a fork of this process, which has pytest loaded but nothing of the project, as a user
who may write nowhere but in a scratch folder.
"""

import base64
import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest  # noqa: F401  (loaded once, for all forks)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
run_tests = importlib.import_module("run_tests")

USER = 65534
SCRATCH = "/tmp/scratch"
CACHE = "/tmp/pycache"
ENV = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": "UTC", "HOME": SCRATCH, "TMPDIR": SCRATCH}
LOG_TAIL = 4000


class Files:
    """Puts files in place and takes them back. Every write gets a time of its own, or Python would take compiled
    code of the file before for that of the file now."""

    def __init__(self) -> None:
        self.time = 1_000_000_000
        self.before: dict[str, bytes | None] = {}

    def put(self, path: str, data: bytes) -> None:
        if path not in self.before:
            self.before[path] = Path(path).read_bytes() if os.path.exists(path) else None
        self._write(path, data)

    def restore(self) -> None:
        for path, data in self.before.items():
            if data is None:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            else:
                self._write(path, data)
        self.before = {}

    def _write(self, path: str, data: bytes) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        self.time += 2
        os.utime(path, (self.time, self.time))


def fresh(folder: str, mode: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    os.chmod(folder, mode)


def run_suite(job: dict[str, Any]) -> dict[str, Any]:
    fresh(SCRATCH, 0o777)
    os.makedirs(CACHE, exist_ok=True)
    os.chmod(CACHE, 0o777)
    report = os.open("/tmp/report", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    log = os.open("/tmp/log", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            os.setsid()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.setgroups([])
            os.setgid(USER)
            os.setuid(USER)
            os.environ.clear()
            os.environ.update(ENV, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
            sys.pycache_prefix = CACHE
            sys.dont_write_bytecode = False
            sys.argv = ["pytest"]
            code = run_tests.run({**job["ask"], "scratch": SCRATCH}, run_tests.into(report))
        finally:
            os._exit(code)
    hung = not wait(pid, job["budget"])
    end_all()
    records = [json.loads(line) for line in read(report).splitlines() if line.endswith(b"}")]
    return {"records": records, "hung": hung, "log": read(log)[-LOG_TAIL:].decode(errors="replace")}


def wait(pid: int, budget: float) -> bool:
    """Whether a child ended by itself within `budget` seconds of CPU, and some times as many by the clock."""
    deadline = time.monotonic() + run_tests.WAITING * budget
    pause = 0.002
    while time.monotonic() < deadline and cpu_seconds(pid) < budget:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def cpu_seconds(pid: int) -> float:
    """What a process and its children that have ended have used."""
    with open(f"/proc/{pid}/stat") as stat:
        ticks = stat.read().rpartition(")")[2].split()[11:15]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def end_all() -> None:
    """Kill what the tests left running, whatever session it went to."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == USER:
                    os.kill(int(name), signal.SIGKILL)
    while True:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def read(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb") as file:
        return file.read()


def run_command(job: dict[str, Any]) -> dict[str, Any]:
    """A command, and what some files hold after it."""
    done = subprocess.run(
        job["command"], env={**ENV, **job["env"]}, capture_output=True, timeout=job["budget"], stdin=subprocess.DEVNULL
    )
    held = {}
    for path in job["read"]:
        with contextlib.suppress(OSError), open(path, "rb") as file:
            held[path] = base64.b64encode(file.read()).decode()
    return {
        "rc": done.returncode,
        "held": held,
        "log": (done.stdout + done.stderr)[-LOG_TAIL:].decode(errors="replace"),
    }


def facts() -> dict[str, Any]:
    """Packages of this environment, and which pytest plug-ins they bring."""
    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    plugins = [[point.name, point.dist.name] for point in metadata.entry_points(group="pytest11") if point.dist]
    return {"installed": installed, "plugins": plugins, "python": sys.version.split()[0]}


def main() -> None:
    files = Files()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(sys.argv[1])
        stream = line.makefile("rwb")
        stream.write(json.dumps(facts()).encode() + b"\n")
        stream.flush()
        for text in stream:
            job = json.loads(text)
            try:
                for path, data in job["files"].items():
                    files.put(path, base64.b64decode(data))
                answer = run_command(job) if "command" in job else run_suite(job)
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            finally:
                files.restore()
            stream.write(json.dumps(answer).encode() + b"\n")
            stream.flush()


if __name__ == "__main__":
    main()
