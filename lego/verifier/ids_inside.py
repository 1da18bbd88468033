# ruff: noqa: UP006, UP035
"""Runs inside the verification container: named pytest tests as another user, their outcomes to results.json.

    ids_inside.py ASK

ASK: app (folder of the project), names (test ids), limit (seconds), results (where to write). Standard library only.
The parent, root, alone writes the results; pytest runs in a child without rights over it, and reports through a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List

PLUGIN = """
import json, os

class Reporter:
    def __init__(self, out, names):
        self.out, self.names, self.outcome, self.pid = out, set(names), {}, os.getpid()

    def say(self, **record):
        if os.getpid() == self.pid:
            data = json.dumps(record).encode() + b"\\n"
            while data:
                data = data[os.write(self.out, data):]

    def pytest_collection_modifyitems(self, config, items):
        items[:] = [item for item in items if item.nodeid in self.names]

    def pytest_runtest_logreport(self, report):
        before = self.outcome.get(report.nodeid, "passed")
        if report.failed:
            before = "failed" if report.when == "call" else "error"
        elif before == "passed" and getattr(report, "wasxfail", None) is not None:
            before = "xfailed" if report.skipped else "xpassed"
        elif before == "passed" and report.skipped:
            before = "skipped"
        self.outcome[report.nodeid] = before

    def pytest_runtest_logfinish(self, nodeid):
        self.say(id=nodeid, outcome=self.outcome.pop(nodeid, "missing"))
"""
# All of the test runner is there before the first file of the project can be imported, unless it is the project. The
# report is sealed only when pytest has come back to here, and nothing of the project's runs after that.
START = """
import importlib, json, os, sys

def load(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass

def main():
    ask = json.loads(sys.stdin.read())
    out, seal, leave, write = ask["out"], ask["seal"], os._exit, os.write
    app = os.path.realpath(ask["app"]) + os.sep
    paths = list(sys.path)
    sys.path[:] = [one for one in paths if not (os.path.realpath(one) + os.sep).startswith(app)]
    load(["pytest"])
    runner = sys.modules.get("_pytest.config")
    load(["_pytest." + name for name in getattr(runner, "default_plugins", ())])
    load([ask["witness"]] if ask["witness"] else [])
    sys.path[:] = paths
    import pytest
    space = {}
    exec(ask["plugin"], space)
    os.chdir(ask["app"])
    sys.path.insert(0, ask["app"])
    args = ["-c", ask["settings"], "--rootdir", ask["app"], "-q", "--color=no", "-p", "no:cacheprovider", "--tb=short"]
    args += ["--continue-on-collection-errors", "--basetemp", ask["scratch"] + "/tmp"]
    code = int(pytest.main(args + ask["files"], plugins=[space["Reporter"](out, ask["names"])]))
    try:
        sys.stdout.flush()
    finally:
        write(out, (seal + " " + str(code) + chr(10)).encode())
        leave(code)

main()
"""
NOBODY = 65534


def python() -> str:
    """The project's own Python: the first one of PATH."""
    return shutil.which("python") or shutil.which("python3") or sys.executable


def become() -> None:
    os.setsid()
    with contextlib.suppress(OSError):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def readable(folder: str) -> None:
    """Let the other user read and enter what an agent may have left private, and write nothing."""
    for root, folders, files in os.walk(folder):
        for name in [root, *(os.path.join(root, one) for one in folders + files)]:
            if not os.path.islink(name):
                with contextlib.suppress(OSError):
                    mode = os.stat(name).st_mode & 0o7777 & ~0o022
                    os.chmod(name, mode | (0o555 if os.path.isdir(name) else 0o444))


def drain(process: subprocess.Popen[bytes], pipe: int, limit: float) -> bytes:
    """All that comes through the pipe until the process has ended or its time is over."""
    data, deadline = b"", time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while time.monotonic() < deadline and len(data) < 64 << 20:
            if selector.select(0.1):
                more = os.read(pipe, 1 << 16)
                if not more:
                    break
                data += more
            elif process.poll() is not None:
                break
    # Every end of the pipe is closed a moment before the process itself has ended.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(min(deadline - time.monotonic(), 5.0), 0.0))
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return data


def outcomes(report: bytes, seal: bytes) -> Any:
    """Test id -> the outcomes reported for it, None where the report was not sealed; and the witness's own lines."""
    found: Dict[str, List[str]] = {}
    witnessed: List[str] = []
    sealed = report.endswith(seal + b"\n")
    for line in report.splitlines()[: -1 if sealed else None]:
        try:
            record = json.loads(line)
            if isinstance(record, list):
                witnessed.append(json.dumps(record) + "\n")
            else:
                found.setdefault(record["id"], []).append(record["outcome"])
        except (ValueError, TypeError, KeyError, RecursionError):
            sealed = False
    return found if sealed else None, witnessed


def main() -> None:
    with open(sys.argv[1]) as file:
        ask = json.load(file)
    os.chmod("/logs/verifier", 0o755)
    witness = os.environ.get("LEGO_WITNESS", "")
    if witness:
        os.chmod(witness, 0o600)
    readable(ask["app"])
    work = tempfile.mkdtemp(prefix="ids-")
    os.chmod(work, 0o755)
    scratch = os.path.join(work, "scratch")
    os.mkdir(scratch)
    os.chmod(scratch, 0o777)
    settings = os.path.join(work, "pytest.ini")
    with open(settings, "w") as file:
        file.write("[pytest]\n")
    reading, writing = os.pipe()
    inner = {
        "app": ask["app"],
        "names": ask["names"],
        "files": sorted({name.partition("::")[0] for name in ask["names"]}),
        "settings": settings,
        "scratch": scratch,
        "out": writing,
        "plugin": PLUGIN,
        "seal": os.urandom(16).hex(),
        "witness": os.path.basename(os.environ.get("LEGO_WITNESS_PLUGIN", "")).partition(".")[0],
    }
    env = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
    env["LEGO_WITNESS"] = f"fd:{writing}"
    env.update({"HOME": scratch, "TMPDIR": scratch, "TZ": "UTC", "PYTHONHASHSEED": "0"})
    with contextlib.suppress(KeyError):
        env["USER"] = pwd.getpwuid(NOBODY).pw_name
    command = [python(), "-s", "-B", "-c", START]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=env, cwd=work, pass_fds=[writing], preexec_fn=become)
    os.close(writing)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(inner).encode())
        process.stdin.close()
    report = drain(process, reading, ask["limit"])
    found, witnessed = outcomes(report, f"{inner['seal']} {process.returncode}".encode())
    if witness:
        with open(witness, "a") as file:
            file.writelines(witnessed)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(ask["results"])
    with open(ask["results"], "x") as file:
        json.dump({"outcomes": found} if found is not None else {}, file)


if __name__ == "__main__":
    main()
