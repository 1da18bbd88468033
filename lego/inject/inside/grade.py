"""Run a task's hidden tests against a submission and write the reward.

    grade.py --app FOLDER --out FOLDER [--user UID]

What it takes to earn 1: every test named in names.json here is reported once, as passed; and a canary, whose name is
made up now and which must fail, is reported as failed. First the project's tests are put back as they were (suite.tar
here); the repository's own pytest settings and plug-ins are not used. pytest runs in a process of its own, as another
user where `--user` is given and the sandbox allows it, so that the submission can write neither the reward, nor these
files, nor the tests.

Trust: a submission whose modules take over pytest from inside its process could still forge the report.
"""

import argparse
import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


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


def run_pytest(app: Path, names: list[str], work: Path, user: int | None, limit: float) -> bytes:
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
    report = os.open(work / "report", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    settings = json.loads((HERE / "settings.json").read_text())
    (work / "pytest.ini").write_text(settings["pytest_ini"])
    ask = {
        "app": str(app),
        "settings": str(work / "pytest.ini"),
        "names": names,
        "limit": settings["test_limit"],
        "scratch": str(scratch),
        "plugins": settings["plugins"],
        "out": report,
        "files": list(dict.fromkeys(name.partition("::")[0] for name in names)),
    }
    shutil.copy(HERE / "run_tests.py", work / "run_tests.py")
    (work / "pytest.ini").chmod(0o444)
    (work / "run_tests.py").chmod(0o444)
    env = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8", "TZ": "UTC", "HOME": str(scratch)}
    env |= {"TMPDIR": str(scratch), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-s", "-B", "-X", f"pycache_prefix={work}/pyc", str(work / "run_tests.py")]
    process = subprocess.Popen(
        command, cwd=app, env=env, stdin=subprocess.PIPE, stdout=sys.stdout, pass_fds=[report], preexec_fn=become
    )
    try:
        process.communicate(json.dumps(ask).encode(), timeout=limit)
    except subprocess.TimeoutExpired:
        print(f"the tests did not end within {limit:.0f} s")
    end_all(process, user)
    os.lseek(report, 0, os.SEEK_SET)
    with open(report, "rb") as file:
        return file.read()


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


def outcomes(report: bytes) -> dict[str, list[str]]:
    """Test id to the outcomes reported for it; empty where the report was not written to its end."""
    found: dict[str, list[str]] = {}
    ended = False
    for line in report.splitlines():
        try:
            record = json.loads(line)
            ended = ended or "ended" in record
            if "id" in record:
                found.setdefault(record["id"], []).append(record["outcome"])
        except (ValueError, TypeError, KeyError):
            return {}
    return found if ended else {}


def grade(app: Path, user: int | None) -> bool:
    wanted = json.loads((HERE / "names.json").read_text())
    names = [*wanted["fail_to_pass"], *wanted["pass_to_pass"]]
    word = secrets.token_hex(8)
    restore_suite(app)
    folder = os.path.dirname(names[0].partition("::")[0])
    canary_file = app / folder / f"test_{word}.py"
    canary_file.write_text(f"def test_{word}():\n    assert False\n")
    canary = f"{os.path.join(folder, canary_file.name)}::test_{word}"
    if user is not None:
        readable(app)
    work = Path(tempfile.mkdtemp(prefix="grade-"))
    try:
        work.chmod(0o755)
        sys.stdout.flush()
        found = outcomes(run_pytest(app, [*names, canary], work, user, wanted["limit"]))
    finally:
        shutil.rmtree(work, ignore_errors=True)
        canary_file.unlink(missing_ok=True)
    bad = [name for name in names if found.get(name) != ["passed"]]
    for name in bad[:50]:
        print(f"{name}: {' and '.join(found.get(name, ['missing']))}")
    canary_failed = found.get(canary) == ["failed"]
    failed_how = "failed as it must" if canary_failed else f"did not fail: {found.get(canary, ['missing'])}"
    print(f"{len(names) - len(bad)} of {len(names)} named tests passed; the canary {failed_how}")
    return bool(names) and not bad and canary_failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--user", type=int)
    options = parser.parse_args()
    if options.user is not None:
        for folder in (options.out, HERE):
            with contextlib.suppress(OSError):
                folder.chmod(0o755 if folder == options.out else 0o700)
    good = grade(options.app.resolve(), options.user)
    (options.out / "reward.json").unlink(missing_ok=True)
    aside = options.out / ".reward"
    aside.write_text("1\n" if good else "0\n")
    aside.replace(options.out / "reward.txt")


if __name__ == "__main__":
    main()
