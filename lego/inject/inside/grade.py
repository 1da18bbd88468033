"""Run a task's hidden tests against a submission and write the reward.

    grade.py --app FOLDER --out FOLDER [--user UID]

What it takes to earn 1: every test named in names.json here is reported once, as passed; a canary, whose name is made
up now and which must fail, is reported as failed; decoys, put among the named tests under names like theirs, are
reported as the outcomes that are drawn for them now; and the process of the tests came to its own end. First the
project's tests are put back as they were (suite.tar here); the repository's own pytest settings and plug-ins are not
used. pytest runs in a process of its own, as another user where `--user` is given and the sandbox allows it, and
reports through a pipe: what was said cannot be taken back, and neither the reward, nor these files, nor the tests can
be written. Where a witness of the sandbox's stands by (LEGO_WITNESS), its plug-in is loaded too, and what that says
is handed on.

Trust: code under test shares a process with pytest. Code that takes pytest apart from inside, tells the decoys from
the tests and leaves no trace that the witness looks for could still forge the report.
"""

import argparse
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
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MOST_DECOYS = 8
REPORT_CAP = 64 << 20


def in_place_of_links(app: Path, path: Path) -> None:
    """Make a path of the project one that leads nowhere else."""
    for parent in reversed(path.relative_to(app).parents[:-1]):
        folder = app / parent
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def restore_suite(app: Path) -> None:
    with tarfile.open(HERE / "suite.tar") as tar:
        for member in tar:
            file = tar.extractfile(member)
            if file is not None:
                target = app / member.name
                in_place_of_links(app, target)
                target.write_bytes(file.read())
                target.chmod(0o644 | (member.mode & 0o111))


def readable(folder: Path) -> None:
    """Let the other user read and enter what the agent may have left private, and write nothing."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            with contextlib.suppress(OSError):
                os.chown(path, 0, 0)
                mode = path.stat().st_mode & ~0o022
                path.chmod(mode | (0o555 if path.is_dir() else 0o444))


def plant(app: Path, names: list[str]) -> dict[str, str]:
    """Adds tests to files of the named ones, at most one a file, whose outcomes are drawn now; one must fail. Returns
    id to outcome.

    Their names are put together from those of the named tests, and of these the agent has not seen all: what would
    turn results into better ones does not know which it must leave alone.
    """
    draw = random.SystemRandom()
    plain = [name for name in names if name.count("::") == 1 and name.rpartition("::")[2].isidentifier()]
    known = [name.rpartition("::")[2].split("_") for name in plain]
    planted: dict[str, str] = {}
    for path in dict.fromkeys(name.partition("::")[0] for name in plain):
        data = (app / path).read_bytes()
        if len(planted) == MOST_DECOYS or b"pytestmark" in data:
            continue
        first, second, number = draw.choice(known), draw.choice(known), draw.randrange(100, 10_000)
        name = "_".join([*first[: len(first) // 2 + 1], *second[len(second) // 2 :]])
        while name.encode() in data:
            name += f"_{draw.choice(draw.choice(known)) or number}"
        outcome = draw.choice(("passed", "failed")) if planted else "failed"
        shown = number if outcome == "passed" else number + draw.randrange(1, 9)
        # At the end: a project's tests may know their own line numbers.
        (app / path).write_bytes(data + f"\n\n\ndef {name}():\n    assert {number} == {shown}\n".encode())
        planted[f"{path}::{name}"] = outcome
    return planted


def run_pytest(app: Path, names: list[str], work: Path, user: int | None, limit: float) -> dict[str, list[str]]:
    """Test id to the outcomes reported for it; empty where the run did not come to its own end."""

    def become() -> None:
        os.setsid()
        if user is not None:
            try:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            except PermissionError:
                os.write(2, b"note: cannot change user here; the submission runs as the tests do\n")

    scratch = work / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    settings = json.loads((HERE / "settings.json").read_text())
    (work / "pytest.ini").write_text(settings["pytest_ini"])
    reading, writing = os.pipe()
    seal = secrets.token_hex(16)
    ask = {
        "app": str(app),
        "settings": str(work / "pytest.ini"),
        "names": random.SystemRandom().sample(names, len(names)),
        "limit": settings["test_limit"],
        "scratch": str(scratch),
        "plugins": settings["plugins"],
        "out": writing,
        "files": list(dict.fromkeys(name.partition("::")[0] for name in names)),
        "seal": seal,
        "witness": os.environ.get("LEGO_WITNESS_PLUGIN", ""),
    }
    for script in ("grade.py", "run_tests.py"):
        shutil.copy(HERE / script, work / script)
        (work / script).chmod(0o444)
    (work / "pytest.ini").chmod(0o444)
    env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": "UTC", "HOME": str(scratch)}
    env |= {"TMPDIR": str(scratch), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    env["LEGO_WITNESS"] = f"fd:{writing}"
    command = [sys.executable, "-s", "-B", "-X", f"pycache_prefix={work}/pyc", str(work / "grade.py"), "--inner"]
    process = subprocess.Popen(
        command, cwd=app, env=env, stdin=subprocess.PIPE, stdout=sys.stdout, pass_fds=[writing], preexec_fn=become
    )
    os.close(writing)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(ask).encode())
        process.stdin.close()
    report = listen(process, reading, limit)
    end_all(process, user)
    found, witnessed = outcomes(report, seal, process.returncode)
    if witnessed and "LEGO_WITNESS" in os.environ:
        with open(os.environ["LEGO_WITNESS"], "a") as file:
            file.writelines(json.dumps(line) + "\n" for line in witnessed)
    return found


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
    ask = json.loads(sys.stdin.read())
    out, leave, write, plain = ask["out"], os._exit, os.write, int.__index__
    raw = importlib.import_module("_signal")
    still, handle, ignore = gc.disable, raw.signal, raw.SIG_IGN
    signals = raw.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
    keeper = keeping(ask.pop("seal").encode(), sys._getframe())
    next(keeper)
    tell, end = telling(out)
    if witness := ask.pop("witness"):
        # All of pytest is there before what looks at it.
        for name in importlib.import_module("_pytest.config").default_plugins:
            with contextlib.suppress(ImportError):
                importlib.import_module(f"_pytest.{name}")
        sys.path.append(os.path.dirname(witness))
        ask["plugins"] = [*ask["plugins"], Path(witness).stem]
        importlib.import_module(Path(witness).stem).through(tell)
    code = plain(importlib.import_module("run_tests").run(ask, tell))
    still()
    for number in signals:
        handle(number, ignore)
    word = keeper.send(f"{end():x} {code}")
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    write(out, f"{word}\n".encode())
    leave(code)


def listen(process: "subprocess.Popen[bytes]", pipe: int, limit: float) -> bytes:
    """All that comes through the pipe until the process has ended or its time is over."""
    data, deadline = bytearray(), time.monotonic() + limit
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while len(data) < REPORT_CAP:
            if time.monotonic() > deadline:
                print(f"the tests did not end within {limit:.0f} s")
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


def end_all(process: "subprocess.Popen[bytes]", user: int | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100 if user not in (None, os.getuid()) else 0):
        left = [int(name) for name in os.listdir("/proc") if name.isdigit() and owner(name) == user]
        if not left:
            return
        for one in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        time.sleep(0.005)


def owner(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return -1
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def sealed(report: bytes, seal: str, code: int) -> tuple[list[bytes], bool]:
    """The lines of a report, and whether the process of the tests sealed these, all of them, with its own exit code."""
    lines = report.splitlines(keepends=True)
    total = sum(int.from_bytes(hashlib.sha256(line).digest(), "big") for line in lines[:-1]) % (1 << 256)
    word = hashlib.blake2b(f"{total:x} {code}".encode(), key=seal.encode()).hexdigest()
    good = lines[-1:] == [f"{word}\n".encode()]
    return lines[:-1] if good else lines, good


def outcomes(report: bytes, seal: str, code: int) -> tuple[dict[str, list[str]], list[Any]]:
    """What the tests' process said: test id to the outcomes reported for it, and the witness's own lines.

    No outcomes where the report was not sealed, or tells another end than that of the process.
    """
    found: dict[str, list[str]] = {}
    witnessed: list[Any] = []
    ended = None
    lines, good = sealed(report, seal, code)
    for line in lines:
        try:
            record = json.loads(line)
            if isinstance(record, list):
                witnessed.append(record)
                continue
            ended = record.get("ended", ended)
            if "id" in record:
                found.setdefault(record["id"], []).append(record["outcome"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            good = False
    if not good or ended is None or ended != code:
        print(f"the process of the tests did not come to its own end (exit code {code})")
        return {}, witnessed
    return found, witnessed


def grade(app: Path, user: int | None) -> bool:
    wanted = json.loads((HERE / "names.json").read_text())
    names = [*wanted["fail_to_pass"], *wanted["pass_to_pass"]]
    word = secrets.token_hex(8)
    restore_suite(app)
    drawn = plant(app, names)
    folder = os.path.dirname(names[0].partition("::")[0])
    canary_file = app / folder / f"test_{word}.py"
    canary_file.write_text(f"def test_{word}():\n    assert False\n")
    drawn[f"{os.path.join(folder, canary_file.name)}::test_{word}"] = "failed"
    if user is not None:
        readable(app)
    work = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        work.chmod(0o755)
        sys.stdout.flush()
        found = run_pytest(app, [*names, *drawn], work, user, wanted["limit"])
    finally:
        shutil.rmtree(work, ignore_errors=True)
        canary_file.unlink(missing_ok=True)
        restore_suite(app)
    bad = [name for name in names if found.get(name) != ["passed"]]
    for name in bad[:50]:
        print(f"{name}: {' and '.join(found.get(name, ['missing']))}")
    wrong = [name for name, outcome in drawn.items() if found.get(name) != [outcome]]
    told = f"{len(drawn) - len(wrong)} of {len(drawn)} canaries and decoys ended as drawn"
    print(f"{len(names) - len(bad)} of {len(names)} named tests passed; {told}")
    return bool(names) and not bad and not wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--user", type=int)
    options = parser.parse_args()
    if options.user is not None:
        if "LEGO_WITNESS" in os.environ:
            os.chmod(os.environ["LEGO_WITNESS"], 0o600)
        for folder in (options.out, HERE):
            with contextlib.suppress(OSError):
                folder.chmod(0o755 if folder == options.out else 0o700)
    good = grade(options.app.resolve(), options.user)
    (options.out / "reward.json").unlink(missing_ok=True)
    aside = options.out / ".reward"
    aside.write_text("1\n" if good else "0\n")
    aside.replace(options.out / "reward.txt")


if __name__ == "__main__":
    inner() if sys.argv[1:] == ["--inner"] else main()
