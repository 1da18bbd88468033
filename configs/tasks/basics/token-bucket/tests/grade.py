"""Run the hidden tests beside this file against a submission and write the reward.

    grade.py --app FOLDER --out FOLDER [--user UID]

What it takes to earn 1: every test function written in test_*.py here is reported once, by its name, as passed; and
a canary, whose name is made up now and which must fail, is reported as failed. The repository's own pytest settings,
conftest files, plug-ins and start-up hooks are not used. pytest runs in a process of its own, as another user where
`--user` is given and the sandbox allows it, so that the submission can write neither the reward nor these files.

Trust: a submission whose modules take over pytest from inside its process could still forge the report.
"""

import argparse
import ast
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

LIMIT = 45.0
TEST_LIMIT = 20
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
RUN = "import sys, pytest; sys.path.append(sys.argv.pop(1)); sys.exit(pytest.main(sys.argv[1:]))"


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


def run_pytest(app: Path, work: Path, user: int | None) -> None:
    def become() -> None:
        os.setsid()
        if user is not None:
            try:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            except PermissionError:
                os.write(2, b"note: cannot change user here; the submission runs as the tests do\n")

    report, tests = work / "report", work / "tests"
    command = [sys.executable, "-I", "-B", "-c", RUN, str(app), "-c", "/dev/null", "--rootdir", str(tests)]
    command += ["--confcutdir", str(tests), "-p", "no:cacheprovider", "-o", "addopts=", "-q"]
    command += [f"--junitxml={report}/junit.xml", f"--basetemp={report}/tmp", str(tests)]
    env = {"PATH": os.defpath, "LANG": "C.UTF-8", "TZ": "UTC", "HOME": str(report), "APP": str(app)}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    process = subprocess.Popen(command, cwd=tests, env=env, stdin=subprocess.DEVNULL, preexec_fn=become)
    try:
        process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        print(f"the tests did not end within {LIMIT:.0f} s")
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def outcomes(report: Path) -> dict[str, list[str]]:
    """Test name to the outcomes reported for it; empty where there is no report that can be read."""
    found: dict[str, list[str]] = {}
    try:
        if report.is_symlink() or report.stat().st_size > 2**22:
            return {}
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return {}
    for case in cases:
        bad = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
        found.setdefault(name, []).append(bad[0] if bad else "passed")
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
        (work / "report").mkdir()
        if user is not None:
            readable(app)
            (work / "report").chmod(0o777)
        for path in here.glob("test_*.py"):
            shutil.copy(path, work / "tests" / path.name)
        (work / "tests" / "conftest.py").write_text(CONFTEST)
        (work / "tests" / f"test_{word}.py").write_text(f"def test_{word}():\n    assert False\n")
        readable(work / "tests")
        sys.stdout.flush()
        run_pytest(app, work, user)
        found = outcomes(work / "report" / "junit.xml")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for name in names:
        print(f"{name}: {' and '.join(found.get(name, ['missing']))}")
    passed = [name for name in names if found.get(name) == ["passed"]]
    canary_failed = found.get(canary) == ["failure"]
    failed_how = "failed as it must" if canary_failed else f"did not fail: {found.get(canary, ['missing'])}"
    print(f"{len(passed)} of {len(names)} named tests passed; the canary {failed_how}")
    return bool(names) and len(passed) == len(names) and canary_failed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--app", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--user", type=int)
    options = parser.parse_args()
    if options.user is not None:
        with contextlib.suppress(OSError):
            options.out.chmod(0o755)
    good = grade(options.app.resolve(), options.user)
    (options.out / "reward.json").unlink(missing_ok=True)
    aside = options.out / ".reward"
    aside.write_text("1\n" if good else "0\n")
    aside.replace(options.out / "reward.txt")


if __name__ == "__main__":
    main()
