"""Run the hidden tests beside this file against a submission and write the reward.

    grade.py --app FOLDER --out FOLDER [--user UID]

What it takes to earn 1: every test function written in test_*.py here is reported once, by its name, as passed; a
canary, whose name is made up now and which must fail, is reported as failed; decoys, put into these files under names
like those of the tests, are reported as is drawn for each now; and the process of the tests came to its own end. The
repository's own pytest settings, conftest files, plug-ins and start-up hooks are not used. pytest runs in a process of
its own, as another user where `--user` is given and the sandbox allows it, and reports through a pipe: what was said
cannot be taken back, and neither the reward nor these files can be written. Where a witness of the sandbox's stands by
(LEGO_WITNESS), its plug-in is loaded too, and what that says is handed on.

Trust: code under test shares a process with pytest. Code that takes pytest apart from inside, tells the decoys from
the tests and leaves no trace that the witness looks for could still forge the report.
"""

import argparse
import ast
import contextlib
import gc
import hashlib
import importlib
import json
import os
import random
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

LIMIT = 45.0
TEST_LIMIT = 20
REPORT_CAP = 16 << 20
CONFTEST = f"""
import signal
import pytest

@pytest.fixture(autouse=True)
def time_limit():
    def stop(*_):
        raise TimeoutError("more than {TEST_LIMIT} s")
    signal.signal(signal.SIGALRM, stop)
    signal.alarm({TEST_LIMIT})
    yield
    signal.alarm(0)
"""


class Reporter:
    """A pytest plug-in that says what became of each test."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self.tell, self.quoted = tell, encode_basestring_ascii
        self.outcome: dict[str, str] = {}

    def pytest_runtest_logreport(self, report) -> None:
        outcome = self.outcome.get(report.nodeid, "passed")
        if report.failed:
            outcome = "failure" if report.when == "call" and outcome == "passed" else "error"
        elif outcome == "passed" and (report.skipped or hasattr(report, "wasxfail")):
            outcome = "skipped"
        self.outcome[report.nodeid] = outcome

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        name = nodeid.replace(".py::", ".")
        self.tell(f"[{self.quoted(name)}, {self.quoted(self.outcome.get(nodeid, 'missing'))}]\n".encode())


def named_tests(folder: Path) -> list[str]:
    return [
        f"{path.stem}.{node.name}"
        for path in sorted(folder.glob("test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def readable(folder: Path) -> None:
    """Let the other user read and enter what the agent may have left private."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with contextlib.suppress(OSError):
                path.chmod(path.stat().st_mode | (0o555 if path.is_dir() else 0o444))


def plant(folder: Path, names: list[str]) -> dict[str, str]:
    """Adds a test to each file of tests, whose outcome is drawn now; one must fail. Returns name to outcome.

    Their names are put together from those of the tests, which the agent never saw: what would turn results into better
    ones does not know which it must leave alone.
    """
    draw = random.SystemRandom()
    words = [name.partition(".")[2].split("_") for name in names]
    planted: dict[str, str] = {}
    for path in sorted(folder.glob("test_*.py")):
        first, second, number = draw.choice(words), draw.choice(words), draw.randrange(100, 10_000)
        text = path.read_text()
        name = "_".join([*first[: len(first) // 2 + 1], *second[len(second) // 2 :]])
        while name in text:
            name += f"_{draw.choice(draw.choice(words)) or number}"
        outcome = draw.choice(("passed", "failure")) if planted else "failure"
        shown = number if outcome == "passed" else number + draw.randrange(1, 9)
        path.write_text(f"{text}\n\n\ndef {name}():\n    assert {number} == {shown}\n")
        planted[f"{path.stem}.{name}"] = outcome
    return planted


def run_pytest(app: Path, work: Path, user: int | None) -> dict[str, list[str]]:
    """Test name to the outcomes reported for it; empty where the run did not come to its own end."""

    def become() -> None:
        os.setsid()
        if user is not None:
            try:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            except PermissionError:
                os.write(2, b"note: cannot change user here; the submission runs as the tests do\n")

    scratch, tests = work / "scratch", work / "tests"
    reading, writing = os.pipe()
    args = ["-c", "/dev/null", "--rootdir", str(tests), "--confcutdir", str(tests), "-p", "no:cacheprovider"]
    args += ["-o", "addopts=", "-q", f"--basetemp={scratch}/tmp", str(tests)]
    witness = os.environ.get("LEGO_WITNESS_PLUGIN", "")
    ask = {"app": str(app), "args": args, "out": writing, "seal": secrets.token_hex(16), "witness": witness}
    shutil.copy(Path(__file__).resolve(), work / "grade.py")
    (work / "grade.py").chmod(0o444)
    env = {"PATH": os.defpath, "LANG": "C.UTF-8", "TZ": "UTC", "HOME": str(scratch), "APP": str(app)}
    env |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "LEGO_WITNESS": f"fd:{writing}"}
    command = [sys.executable, "-I", "-B", str(work / "grade.py"), "--inner"]
    process = subprocess.Popen(
        command, cwd=tests, env=env, stdin=subprocess.PIPE, pass_fds=[writing], preexec_fn=become
    )
    os.close(writing)
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(ask).encode())
        process.stdin.close()
    report = listen(process, reading)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return outcomes(report, ask["seal"], process.wait())


def telling(out: int) -> tuple[Callable[[bytes], None], Callable[[], int]]:
    """A function that writes a line, and one that ends that and says what was written in all: a sum over the lines, for
    threads may write."""
    pid, getpid, write, lock, total = os.getpid(), os.getpid, os.write, threading.RLock(), 0
    sha256, number = hashlib.sha256, int.from_bytes

    def tell(line: bytes) -> None:
        nonlocal total
        if getpid() == pid:
            with lock:
                value = number(sha256(line).digest(), "big")
                total = (total + value) % (1 << 256)
                while line:
                    line = line[write(out, line) :]

    def end() -> int:
        nonlocal pid
        with lock:
            pid = 0
            return total

    return tell, end


def keeping(seal: bytes, home: Any) -> Generator[str, str, None]:
    """Holds the seal, and puts it under what the frame `home` hands in, and no other. A generator that is not running
    has no place among the frames that a signal handler is given."""
    me, mac = sys._getframe(), hashlib.blake2b
    try:
        said = yield ""
        word = mac(said.encode(), key=seal).hexdigest() if me.f_back is home else ""
    finally:
        seal = b""
    yield word


def inner() -> None:
    """The process of the tests. It seals its report only when pytest has come back to here, and leaves at once.

    What it calls then was looked up before anything of the project could exchange it.
    """
    import pytest

    ask = json.loads(sys.stdin.read())
    out, leave, write, plain = ask["out"], os._exit, os.write, int.__index__
    raw = importlib.import_module("_signal")
    still, handle, ignore = gc.disable, raw.signal, raw.SIG_IGN
    signals = raw.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    keeper = keeping(ask.pop("seal").encode(), sys._getframe())
    next(keeper)
    tell, end = telling(out)
    if ask["witness"]:
        sys.path.append(os.path.dirname(ask["witness"]))
        witness = importlib.import_module(Path(ask["witness"]).stem)
        witness.through(tell)
        ask["args"] += ["-p", witness.__name__]
    sys.path.append(ask["app"])
    code = plain(pytest.main(ask["args"], plugins=[Reporter(tell)]))
    still()
    for number in signals:
        handle(number, ignore)
    word = keeper.send(f"{end():x} {code}")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    write(out, f"{word}\n".encode())
    leave(code)


def listen(process: "subprocess.Popen[bytes]", pipe: int) -> bytes:
    """All that comes through the pipe until the process has ended or its time is over."""
    data, deadline = bytearray(), time.monotonic() + LIMIT
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(data) < REPORT_CAP:
            if time.monotonic() > deadline:
                print(f"the tests did not end within {LIMIT:.0f} s")
                break
            if selector.select(0.1):
                more = os.read(pipe, 1 << 16)
                if not more:
                    break
                data += more
            elif process.poll() is not None:
                break
    os.close(pipe)
    # Every end of the pipe is closed a moment before the process itself has ended.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(min(deadline - time.monotonic(), 5.0), 0.0))
    return bytes(data)


def sealed(report: bytes, seal: str, code: int) -> tuple[list[bytes], bool]:
    """The lines of a report, and whether the process of the tests sealed these, all of them, with its own exit code."""
    lines = report.splitlines(keepends=True)
    total = sum(int.from_bytes(hashlib.sha256(line).digest(), "big") for line in lines[:-1]) % (1 << 256)
    word = hashlib.blake2b(f"{total:x} {code}".encode(), key=seal.encode()).hexdigest()
    good = lines[-1:] == [f"{word}\n".encode()]
    return lines[:-1] if good else lines, good


def outcomes(report: bytes, seal: str, code: int) -> dict[str, list[str]]:
    """Test name to the outcomes reported for it; empty where the report was not sealed. What the witness said is handed
    on."""
    found: dict[str, list[str]] = {}
    witnessed: list[str] = []
    lines, good = sealed(report, seal, code)
    for line in lines:
        try:
            record = json.loads(line)
            if len(record) == 2:
                found.setdefault(record[0], []).append(record[1])
            else:
                witnessed.append(json.dumps(record) + "\n")
        except (ValueError, TypeError, KeyError, RecursionError):
            good = False
    if witnessed and "LEGO_WITNESS" in os.environ:
        with open(os.environ["LEGO_WITNESS"], "a") as file:
            file.writelines(witnessed)
    if not good:
        print("the process of the tests did not come to its own end")
        return {}
    return found


def grade(app: Path, user: int | None) -> bool:
    here = Path(__file__).resolve().parent
    names = named_tests(here)
    word = secrets.token_hex(8)
    canary = f"test_{word}.test_{word}"
    work = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        work.chmod(0o755)
        (work / "tests").mkdir()
        (work / "scratch").mkdir()
        if user is not None:
            readable(app)
            (work / "scratch").chmod(0o777)
        for path in here.glob("test_*.py"):
            shutil.copy(path, work / "tests" / path.name)
        (work / "tests" / "conftest.py").write_text(CONFTEST)
        drawn = plant(work / "tests", names)
        (work / "tests" / f"test_{word}.py").write_text(f"def test_{word}():\n    assert False\n")
        readable(work / "tests")
        sys.stdout.flush()
        found = run_pytest(app, work, user)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for name in names:
        print(f"{name}: {' and '.join(found.get(name, ['missing']))}")
    passed = [name for name in names if found.get(name) == ["passed"]]
    canary_failed = found.get(canary) == ["failure"]
    failed_how = "failed as it must" if canary_failed else f"did not fail: {found.get(canary, ['missing'])}"
    wrong = [name for name, outcome in drawn.items() if found.get(name) != [outcome]]
    print(f"{len(passed)} of {len(names)} named tests passed; the canary {failed_how}; {len(wrong)} decoys went wrong")
    return bool(names) and len(passed) == len(names) and canary_failed and not wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--user", type=int)
    options = parser.parse_args()
    if options.user is not None:
        with contextlib.suppress(OSError):
            options.out.chmod(0o755)
            if "LEGO_WITNESS" in os.environ:
                os.chmod(os.environ["LEGO_WITNESS"], 0o600)
    good = grade(options.app.resolve(), options.user)
    (options.out / "reward.json").unlink(missing_ok=True)
    aside = options.out / ".reward"
    aside.write_text("1\n" if good else "0\n")
    aside.replace(options.out / "reward.txt")


if __name__ == "__main__":
    inner() if sys.argv[1:] == ["--inner"] else main()
