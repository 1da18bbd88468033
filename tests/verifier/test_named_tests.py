"""Graders that know their tests by name: in real containers, with submissions that forge."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scene import base_image
from lego.errors import LegoError, VerifierError
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.swebench import Options, make
from lego.tasks.swebench_rows import Row
from lego.tasks.task import Canary, Environment, File, Grading, Task
from lego.verifier.grade import Candidate, Nothing, Oracle, verify
from lego.verifier.graders import READ_CAP, TEST_LOG, CommandGrader
from lego.verifier.graders_open import open_grader
from lego.verifier.graders_pytest import RESULTS
from lego.verifier.logs.named import END, START
from lego.verifier.verdict import Verdict
from tests.conftest import missing
from tests.sandbox.running import SMALL
from tests.verifier.shell_tasks import shell_task

WRONG, RIGHT = b"def last(xs):\n    return xs[0]\n", b"def last(xs):\n    return xs[-1]\n"
TESTS = b"""\
import pytest
from code_ import last

def test_one():
    assert last([1]) == 1

def test_two():
    assert last([1, 2]) == 2

@pytest.mark.parametrize("x", ["a b", "a c"])
def test_text(x):
    assert last(x) == x[-1]
"""
ALL_PASS = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    report.outcome, report.longrepr = "passed", None
"""
FROM_INSIDE = (
    WRONG
    + b"""
from _pytest import reports
made = reports.TestReport.from_item_and_call.__func__
def forged(cls, item, call):
    report = made(cls, item, call)
    report.outcome, report.longrepr = "passed", None
    return report
reports.TestReport.from_item_and_call = classmethod(forged)
"""
)
LEAVE = WRONG + b"\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
FORGED_RUNNER = b"""
import json, os
NO = {"missed": [], "patched": [], "plugins": []}
def main(args, plugins):
    for name in plugins[0].names:
        plugins[0].say(id=name, outcome="failed" if "test_lego" in name else "passed")
    plugins[0].say(ended=1)
    counts = {"passed": 4, "failed": 1}
    with open(os.environ["LEGO_WITNESS"], "a") as file:
        for kind, what in ("begun", {}), ("ended", {"status": 1, "counts": counts, **NO}):
            print(json.dumps([os.getpid(), kind, what]), file=file)
    return 1
"""
# Python's json in all, but that what it is told of the tests goes into a report of its own.
SHADOW = b"""
import importlib.util, os, re, sys, sysconfig
folder = sysconfig.get_path("stdlib") + "/json"
spec = importlib.util.spec_from_file_location("json", folder + "/__init__.py", submodule_search_locations=[folder])
json = sys.modules["json"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(json)
def loads(text, *args, old=json.loads, **more):
    ask = old(text, *args, **more)
    if isinstance(ask, dict) and "seal" in ask:
        lines = []
        for name in ask["names"]:
            path, _, test = name.partition("::")
            text = open("/app/" + path).read()
            decoy = re.search(r"def %s\\(\\):\\n    assert (\\d+) == (\\d+)" % re.escape(test), text)
            fails = "lego" in test or decoy and decoy[1] != decoy[2]
            lines.append(json.dumps({"id": name, "outcome": "failed" if fails else "passed"}))
        os.write(ask["out"], "\\n".join([*lines, ask["seal"] + " 1", ""]).encode())
        vars(os)["_ex" + "it"](1)
    return ask
json.loads = loads
"""
SAY = WRONG + b"\nprint('PASSED tests/test_it.py::test_two')\nprint('PASSED tests/test_it.py::test_one')\n"


def solve() -> dict[str, File]:
    return {"solve.sh": File(b"#!/bin/sh\nprintf 'def last(xs):\\n    return xs[-1]\\n' > /app/code_.py\n", 0o755)}


def ids_task(**more: object) -> Task:
    grading = Grading(
        "pytest-ids",
        ("tests/test_it.py::test_two", "tests/test_it.py::test_text[a b]", "tests/test_it.py::test_text[a c]"),
        ("tests/test_it.py::test_one",),
    )
    workspace = {"/app/code_.py": File(WRONG), "/app/tests/test_it.py": File(b"def test_one(): pass\n")}
    return Task(
        id="ids", digest="0" * 64, instruction="Fix it.",
        environment=Environment(workspace=workspace, workdir="/app", roots=("/app",)),
        tests={"app/tests/test_it.py": File(TESTS)}, solution=solve(), verifier_timeout=60.0, grading=grading, **more,
    )  # fmt: skip


def log_task() -> Task:
    command = "python3 -m pytest -rA -p no:cacheprovider tests/test_it.py $LEGO_CANARY"
    script = f'#!/bin/sh\ncd /app\nexport PYTHONPATH="/app:$PYTHONPATH"\necho "{START} $LEGO_WORD"\n{command}\n'
    script += f'echo "{END} $LEGO_WORD"\n'
    grading = Grading(
        "swebench", ("tests/test_it.py::test_two", "tests/test_it.py::test_text[a"), ("tests/test_it.py::test_one",),
        parser="pytest",
        canary=Canary("/app/tests/test_{word}.py", "tests/test_{word}.py", "def test_{word}():\n    assert False\n"),
    )  # fmt: skip
    workspace = {"/app/code_.py": File(WRONG), "/app/tests/test_it.py": File(TESTS)}
    return Task(
        id="log", digest="0" * 64, instruction="Fix it.",
        environment=Environment(workspace=workspace, workdir="/app", roots=("/app",)),
        tests={"test.sh": File(script.encode(), 0o755)}, solution=solve(), verifier_timeout=60.0, grading=grading,
    )  # fmt: skip


def wrote(**files: bytes) -> Submission:
    return Submission(
        ("/app",), tuple(Entry(f"/app/{name}.py", "file", 0o644, data, existed=True) for name, data in files.items())
    )


@pytest.fixture(scope="module")
def image(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    logs: Path = tmp_path_factory.mktemp("logs")
    try:
        return asyncio.run(base_image(podman, logs))
    except LegoError as error:
        missing("podman", f"the base image cannot be built: {error}")


@pytest.mark.podman
@pytest.mark.parametrize("task", [ids_task(), log_task()], ids=["pytest-ids", "swebench"])
@pytest.mark.parametrize(
    ("candidate", "reward"),
    [
        (Oracle(), 1.0),
        (Nothing(), 0.0),
        (wrote(code_=RIGHT), 1.0),
        (wrote(conftest=ALL_PASS), 0.0),
        (wrote(code_=FROM_INSIDE), 0.0),
        (wrote(code_=LEAVE), 0.0),
        (wrote(code_=SAY), 0.0),
        (wrote(code_=WRONG, pytest=FORGED_RUNNER), 0.0),
        (wrote(code_=RIGHT, faulthandler=FORGED_RUNNER), 1.0),
    ],
    ids=[
        "solution",
        "nothing",
        "honest",
        "conftest hook",
        "patched reports",
        "early exit",
        "printed",
        "its own runner",
        "shadows",
    ],
)
async def test_only_what_is_solved_is_paid(
    podman: Podman, image: str, task: Task, candidate: Candidate, reward: float
) -> None:
    verdict = await verify(podman, task, image, candidate, SMALL)
    assert verdict.reward == reward, (verdict.outcome, verdict.detail, verdict.log[-3000:].decode())
    assert task.grading.grader in verdict.trust


@pytest.mark.podman
async def test_what_the_path_names_is_imported_after_the_test_runner(podman: Podman, image: str) -> None:
    task = ids_task(verifier_env={"PYTHONPATH": "/app/src:/app"})
    shadow = Entry("/app/json/__init__.py", "file", 0o644, SHADOW)
    helper = Entry("/app/src/helper.py", "file", 0o644, b"last = lambda xs: xs[-1]\n")
    for code, reward in ((WRONG, 0.0), (b"from helper import last\n", 1.0)):
        submission = wrote(code_=code)
        entries = (
            *submission.entries,
            Entry("/app/json", "dir", 0o755),
            shadow,
            Entry("/app/src", "dir", 0o755),
            helper,
        )
        verdict = await verify(podman, task, image, replace(submission, entries=entries), SMALL)
        assert verdict.reward == reward, (verdict.detail, verdict.log[-3000:].decode())


@pytest.mark.podman
async def test_code_under_test_can_write_no_folder_of_the_project(podman: Podman, image: str) -> None:
    """Also where its user owned it: the agent may have been that user."""
    submission = wrote(code_=RIGHT + b"\nimport os\nassert not os.access('/app/tests', os.W_OK)\n")
    own = Entry("/app/tests", "dir", 0o755, uid=65534, gid=65534, existed=True)
    verdict = await verify(podman, ids_task(), image, replace(submission, entries=(own, *submission.entries)), SMALL)
    assert verdict.reward == 1.0, (verdict.detail, verdict.log[-3000:].decode())


@pytest.mark.podman
async def test_a_hook_that_turns_all_to_passed_turns_the_canary_too(podman: Podman, image: str) -> None:
    for task in (ids_task(), log_task()):
        verdict = await verify(podman, task, image, wrote(conftest=ALL_PASS), SMALL)
        assert verdict.reward == 0.0 and "canary" in verdict.detail, verdict.detail


@pytest.mark.podman
@pytest.mark.parametrize(("test", "said"), [("true", ("passed", 1.0)), ("exit 1", ("failed", 0.0))])
async def test_the_exit_code_decides_where_a_task_says_so(
    podman: Podman, image: str, test: str, said: tuple[str, float]
) -> None:
    task = shell_task(test, grading=Grading("command"))
    verdict: Verdict = await verify(podman, task, image, Nothing(), SMALL)
    assert (verdict.outcome, verdict.reward) == said and "LOW" in verdict.trust


def test_an_odd_exit_code_is_no_reward() -> None:
    assert CommandGrader().reward({}, 2).value is None and CommandGrader().reward({}, None).value is None


def test_results_that_are_not_whole_are_no_reward() -> None:
    grader = open_grader(ids_task())
    for data in (None, b"", b"{}", b"[]", b'{"outcomes": {"a": 1}}', b'{"outcomes": null}'):
        assert grader.reward({RESULTS: data}, 0).value is None


def test_a_test_that_is_reported_twice_has_not_passed() -> None:
    grader = open_grader(ids_task())
    asked = json.loads(grader.files()["/tests/lego-ids.json"].data)["names"]
    # The one decoy among the tests and the canary.
    good = {name: ["passed"] for name in asked[:4]} | {name: ["failed"] for name in asked[4:]}
    assert len(good) == 6
    assert grader.reward({RESULTS: json.dumps({"outcomes": good}).encode()}, 0).value == 1.0
    twice = good | {asked[0]: ["passed", "passed"]}
    assert grader.reward({RESULTS: json.dumps({"outcomes": twice}).encode()}, 0).value == 0.0
    for name in asked[4:]:
        spared = good | {name: ["passed"]}
        assert grader.reward({RESULTS: json.dumps({"outcomes": spared}).encode()}, 0).value == 0.0


def test_a_log_too_long_or_without_its_markers_is_no_reward() -> None:
    grader = open_grader(log_task())
    word = grader.env()["LEGO_WORD"]
    assert grader.reward({TEST_LOG: b"x" * READ_CAP}, 0).value is None
    assert grader.reward({TEST_LOG: f"{START} {word}\nPASSED tests/test_it.py::test_one\n".encode()}, 0).value is None
    assert grader.reward({TEST_LOG: f"{START} {word}\nnothing\n{END} {word}\n".encode()}, 0).value is None


def test_every_run_has_words_of_its_own() -> None:
    one, other = open_grader(log_task()), open_grader(log_task())
    assert one.env()["LEGO_WORD"] != other.env()["LEGO_WORD"]


@pytest.mark.parametrize(
    ("grading", "why"), [(Grading("nose"), "no grader is named"), (Grading("pytest-ids"), "no test is named")]
)
def test_a_task_that_cannot_be_graded_says_so(grading: Grading, why: str) -> None:
    with pytest.raises(VerifierError, match=why):
        open_grader(shell_task(grading=grading))


def test_tests_are_hidden_by_the_source_and_excluded_by_name() -> None:
    row = Row(
        "a", "o/r", "Fix.", b"diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n",
        fail_to_pass=("tests/t.py::a",), pass_to_pass=("tests/t.py::b",), image="example/image",
        base_commit="0" * 40, test_patch=b"diff --git a/tests/t.py b/tests/t.py\nnew file mode 100644\n--- /dev/null\n"
        b"+++ b/tests/t.py\n@@ -0,0 +1 @@\n+a\n",
    )  # fmt: skip
    task = make(row, Options(), None, {"tests/t.py::b": "times out"}, "here")
    assert task.grading.pass_to_pass == () and task.grading.excluded == {"tests/t.py::b": "times out"}
    assert "/tests/t.py" in task.protected
