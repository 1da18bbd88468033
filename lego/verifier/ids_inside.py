# ruff: noqa: UP006, UP035
"""Runs inside the verification container: named pytest tests as another user, their outcomes to results.json.

    ids_inside.py ASK

ASK: app (folder of the project), names (test ids), limit (seconds), results (where to write). Standard library only.
The parent, root, alone writes the results; pytest runs in a child without rights over it, and reports through a pipe.
"""

from __future__ import annotations

import contextlib
import hashlib
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
from json.encoder import encode_basestring_ascii as quoted

class Reporter:
    def __init__(self, tell, names):
        self.tell, self.quoted, self.names, self.outcome = tell, quoted, set(names), {}

    def say(self, id, outcome):
        self.tell(('{"id": %s, "outcome": %s}' % (self.quoted(id), self.quoted(outcome))).encode() + b"\\n")

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
# report is sealed only when pytest has come back to here, and nothing of the project's runs after that. No frame below
# the tests holds the seal, which signal handlers would be given: it lies in a generator that is not running, and that
# works for this frame alone. What is called here was looked up before anything of the project could exchange it.
START = """
import gc, hashlib, importlib, json, os, sys
import _signal, _thread

def load(names):
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            pass

def telling(out):
    # One function writes a line, the other ends that and says what was written in all: a sum, for threads may write.
    pid, getpid, write, lock, total = os.getpid(), os.getpid, os.write, _thread.RLock(), 0
    sha256, number = hashlib.sha256, int.from_bytes

    def tell(line):
        nonlocal total
        if getpid() == pid:
            with lock:
                value = number(sha256(line).digest(), "big")
                total = (total + value) % (1 << 256)
                while line:
                    line = line[write(out, line):]

    def end():
        nonlocal pid
        with lock:
            pid = 0
            return total

    return tell, end

def keeping(seal, home):
    me, mac = sys._getframe(), hashlib.blake2b
    try:
        said = yield
        word = mac(said.encode(), key=seal).hexdigest() if me.f_back is home else ""
    finally:
        seal = None
    yield word

def main():
    ask = json.loads(sys.stdin.read())
    out, leave, write, plain = ask["out"], os._exit, os.write, int.__index__
    still, handle, ignore, signals = gc.disable, _signal.signal, _signal.SIG_IGN, range(1, _signal.NSIG)
    keeper = keeping(ask.pop("seal").encode(), sys._getframe())
    next(keeper)
    tell, end = telling(out)
    app = os.path.realpath(ask["app"]) + os.sep
    own = [os.path.abspath(one) for one in ask["path"].split(os.pathsep) if one]
    paths = [*sys.path[:1], *own, *sys.path[1:]]
    sys.path[:] = [one for one in paths if not (os.path.realpath(one) + os.sep).startswith(app)]
    load(["pytest"])
    runner = sys.modules.get("_pytest.config")
    load(["_pytest." + name for name in getattr(runner, "default_plugins", ())])
    load([ask["witness"]] if ask["witness"] else [])
    watcher = sys.modules.get(ask["witness"])
    if watcher is not None:
        watcher.through(tell)
    sys.path[:] = paths
    if ask["path"]:
        os.environ["PYTHONPATH"] = ask["path"]
    import pytest
    space = {}
    exec(ask["plugin"], space)
    os.chdir(ask["app"])
    sys.path.insert(0, ask["app"])
    args = ["-c", ask["settings"], "--rootdir", ask["app"], "-q", "--color=no", "-p", "no:cacheprovider", "--tb=short"]
    args += ["--continue-on-collection-errors", "--basetemp", ask["scratch"] + "/tmp"]
    code = plain(pytest.main(args + ask["files"], plugins=[space["Reporter"](tell, ask["names"])]))
    still()
    for number in signals:
        try:
            handle(number, ignore)
        except (OSError, ValueError):
            pass
    word = keeper.send("%x %d" % (end(), code))
    try:
        sys.stdout.flush()
    finally:
        write(out, (word + chr(10)).encode())
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
                    os.chown(name, 0, 0)


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


def outcomes(report: bytes, seal: bytes, code: int) -> Any:
    """Test id -> the outcomes reported for it, None where what was reported is not what the process of the tests
    sealed, or was sealed with another exit code than its own; and the witness's own lines."""
    found: Dict[str, List[str]] = {}
    witnessed: List[str] = []
    lines = report.splitlines(keepends=True)
    total = sum(int.from_bytes(hashlib.sha256(line).digest(), "big") for line in lines[:-1]) % (1 << 256)
    word = hashlib.blake2b(b"%x %d" % (total, code), key=seal).hexdigest()
    sealed = lines[-1:] == [word.encode() + b"\n"]
    for line in lines[:-1] if sealed else lines:
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
        # Not in its environment: nothing of the project can be imported before the test runner is there.
        "path": os.environ.get("PYTHONPATH", ""),
        "witness": os.path.basename(os.environ.get("LEGO_WITNESS_PLUGIN", "")).partition(".")[0],
    }
    env = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
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
    found, witnessed = outcomes(report, inner["seal"].encode(), process.returncode)
    if witness:
        with open(witness, "a") as file:
            file.writelines(witnessed)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(ask["results"])
    with open(ask["results"], "x") as file:
        json.dump({"outcomes": found} if found is not None else {}, file)


if __name__ == "__main__":
    main()
