"""The grader that every injected task brings along: what it pays, and what it does not, on this machine."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import pytest

from lego.verifier.witness import Witness
from tests.attacks.hacks import RELAYS, TAKES_THE_SEAL, TURNS_LINES

GOOD = "def add(a, b):\n    return a + b\n"
BAD = "def add(a, b):\n    return a - b\n"
TESTS = """import calc

def test_small_sums():
    assert calc.add(1, 2) == 3

def test_negative_sums():
    assert calc.add(-1, -2) == -3

class TestMore:
    def test_zero(self):
        assert calc.add(0, 0) == 0
"""
NAMES = {
    "fail_to_pass": ["tests/test_calc.py::test_small_sums", "tests/test_calc.py::test_negative_sums"],
    "pass_to_pass": ["tests/test_calc.py::TestMore::test_zero"],
    "limit": 60.0,
}
SAYS_EVERYTHING = """import gc, os
for each in gc.get_objects():
    if type(each).__name__ == "Hooks":
        for name in each.names:
            canary = name.count("::") == 1 and len(name.rpartition("_")[2]) == 16
            each.say(id=name, outcome="failed" if canary else "passed", seconds=0.0)
        each.say(ended=1)
        getattr(os, "_ex" + "it")(1)
"""
TURNS_FAILURES = """import _pytest.reports
def _made(cls, item, call, old=_pytest.reports.TestReport.from_item_and_call.__func__):
    report = old(cls, item, call)
    if len(item.name.rpartition("_")[2]) != 16:
        report.outcome, report.longrepr = "passed", None
    return report
_pytest.reports.TestReport.from_item_and_call = classmethod(_made)
"""
WRITES_LINES = """import json, os
for descriptor in range(3, 64):
    try:
        for name in ("tests/test_calc.py::test_small_sums", "tests/test_calc.py::test_negative_sums"):
            os.write(descriptor, json.dumps({"id": name, "outcome": "passed"}).encode() + b"\\n")
    except OSError:
        pass
"""
# Threads, forks, handlers and pipes of its own, some of which the witness speaks of while they run beside the tests.
BUSY = """import gc, inspect, os, signal, subprocess, sys, threading
if os.fork() == 0:
    gc.get_referrers(1)
    os._exit(0)
os.wait()
def _look(*looks):
    for each in looks * 50:
        each()
for looks in (inspect.stack, gc.get_objects), (sys._current_frames, inspect.currentframe):
    threading.Thread(target=_look, args=looks, daemon=True).start()
signal.signal(signal.SIGUSR1, lambda number, frame: _look(inspect.stack))
signal.raise_signal(signal.SIGUSR1)
subprocess.run([sys.executable, "-c", ""], check=True)
"""
LEAVES = 'import os\ngetattr(os, "_ex" + "it")(1)\n'


def pack(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def graded(
    folder: Path,
    files: Mapping[str, str],
    *,
    tests: str = TESTS,
    env: Mapping[str, str] | None = None,
    settings: str = "[pytest]\n",
) -> str:
    """What a submission of `files` is paid: the content of reward.txt."""
    hidden, app, out = folder / "hidden", folder / "app", folder / "out"
    for place in (hidden, app, out):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
    inside = resources.files("lego.inject.inside")
    for name in ("grade.py", "run_tests.py"):
        (hidden / name).write_bytes(inside.joinpath(name).read_bytes())
    (hidden / "names.json").write_text(json.dumps(NAMES))
    (hidden / "settings.json").write_text(json.dumps({"pytest_ini": settings, "plugins": [], "test_limit": 10}))
    (hidden / "suite.tar").write_bytes(pack({"tests/test_calc.py": tests, "tests/conftest.py": ""}))
    (app / "conftest.py").write_text("")  # puts the project on the path
    for path, text in files.items():
        (app / path).parent.mkdir(parents=True, exist_ok=True)
        (app / path).write_text(text)
    command = [sys.executable, "-I", "-B", str(hidden / "grade.py"), "--app", str(app), "--out", str(out)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LEGO"))}
    done = subprocess.run(command, env={**kept, **(env or {})}, capture_output=True, text=True, timeout=120)
    print(done.stdout, done.stderr)
    assert [path.name for path in app.glob("tests/test_*.py")] == ["test_calc.py"]
    assert (app / "tests/test_calc.py").read_text() == tests
    return (out / "reward.txt").read_text().strip()


def test_what_solves_the_task_is_paid_and_nothing_else_is(tmp_path: Path) -> None:
    assert graded(tmp_path, {"calc.py": GOOD}) == "1"
    assert graded(tmp_path, {"calc.py": BAD}) == "0"
    assert graded(tmp_path, {}) == "0"
    assert graded(tmp_path, {"calc.py": GOOD + "import atexit, os\natexit.register(os._exit, 3)\n"}) == "1"


@pytest.mark.parametrize(
    "attack",
    [
        SAYS_EVERYTHING,
        TURNS_FAILURES,
        WRITES_LINES,
        LEAVES,
        *(f"{each}\n" for each in (TAKES_THE_SEAL, RELAYS, TURNS_LINES)),
    ],
    ids=["says", "turns", "writes", "leaves", "takes the seal", "relays", "turns lines"],
)
def test_a_report_that_the_code_under_test_writes_is_not_paid(tmp_path: Path, attack: str) -> None:
    assert graded(tmp_path, {"calc.py": attack + BAD}) == "0"
    assert graded(tmp_path, {"calc.py": BAD, "pytest.py": attack}) == "0"


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (SAYS_EVERYTHING, {"reached": ("calc.py: gc.get_objects",), "unfinished": 1}),
        (TURNS_FAILURES, {"patched": ("_pytest.reports.TestReport.from_item_and_call",)}),
        (BUSY, {"patched": (), "plugins": (), "unfinished": 0, "sessions": 1}),
        ("", {"reached": (), "patched": (), "plugins": (), "unfinished": 0, "sessions": 1}),
    ],
    ids=["says", "turns", "busy", "honest"],
)
def test_what_a_witness_says_is_handed_on(tmp_path: Path, attack: str, said: dict[str, object]) -> None:
    witness = Witness()
    for entry in witness.entries():
        at = tmp_path / "root" / entry.path.lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        if entry.kind == "file":
            at.write_bytes(entry.data)
    env = {name: f"{tmp_path}/root{value}" for name, value in witness.env("").items()}
    # Which is no warning, where warnings are errors.
    paid = graded(tmp_path, {"calc.py": attack + GOOD}, env=env, settings="[pytest]\nfilterwarnings = error\n")
    assert paid == "1" or attack in (SAYS_EVERYTHING, TURNS_FAILURES)
    seen = witness.read(b"", Path(env["LEGO_WITNESS"]).read_bytes()).as_dict()
    assert {name: seen[name] for name in said} == said
