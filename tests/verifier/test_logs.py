"""Log parsing, held against swebench 4.1.0's own verdicts on real logs (data/swebench_verdicts.json, made with it:
MAP_REPO_TO_PARSER, get_eval_tests_report and get_resolution_status on each log of real_logs.tar.gz)."""

from __future__ import annotations

import gzip
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.errors import VerifierError
from lego.tasks.swebench_rows import parse
from lego.verifier.graders import READ_CAP
from lego.verifier.logs import frameworks
from lego.verifier.logs.named import END, START, results
from lego.verifier.logs.named import test_output as output_of

VERDICTS = json.loads((Path(__file__).parent / "data/swebench_verdicts.json").read_text())
FORGED = "exploit.exploit.log"


def members(archive: Path) -> Iterator[tuple[str, str]]:
    if not archive.is_file():
        pytest.skip(f"{archive.name} is not beside this checkout")
    with tarfile.open(archive) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            if file is not None:
                yield member.name, file.read().decode(errors="replace")


@pytest.fixture(scope="module")
def named(shared_data: Path) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    with gzip.open(shared_data / "swebench_verified_500.jsonl.gz", "rt") as file:
        rows = [parse(json.loads(line), "row") for line in file]
    return {row.id: (row.fail_to_pass, row.pass_to_pass) for row in rows}


def test_every_verdict_is_the_benchmark_s_own_except_on_the_forged_log(shared_data: Path, named: Any) -> None:
    seen = 0
    for name, log in members(shared_data / "real_logs.tar.gz"):
        want = VERDICTS.get(Path(name).name)
        if want is None:
            continue
        seen += 1
        fail_to_pass, pass_to_pass = named[want["instance_id"]]
        output = output_of(log)
        if Path(name).name == FORGED:
            assert want["resolved"] and output is None
            continue
        assert output is not None, name
        found = results(output, want["parser"], fail_to_pass, pass_to_pass)
        assert found.resolved == want["resolved"], name
        for kind, names in (("f2p", fail_to_pass), ("p2p", pass_to_pass)):
            passed = sum(one in found.passed for one in names)
            assert [passed, len(names) - passed] == want[kind], name
    assert seen == len(VERDICTS)
    assert sum(one["resolved"] for one in VERDICTS.values()) == 11


def test_the_verdicts_of_swe_smith_s_own_reports(shared_data: Path) -> None:
    files = dict(members(shared_data / "swesmith_test_logs.tar.gz"))
    runs = [name.rpartition("/")[0] for name in files if name.endswith("/report.json") and "run_evaluation/" in name]
    checked = 0
    for run in runs:
        report = json.loads(files[f"{run}/report.json"]).get("tests_status")
        log = files.get(f"{run}/test_output.txt")
        if report is None or log is None:
            continue
        named = {kind: [*report[kind]["success"], *report[kind]["failure"]] for kind in report}
        output = output_of(log)
        assert output is not None
        found = results(output, "swesmith", (), [*named["FAIL_TO_PASS"], *named["PASS_TO_PASS"]])
        good = {one for kind in report for one in report[kind]["success"]}
        # Its own report counts what was skipped and named as neither.
        assert {one for one in found.passed} == good, run
        checked += 1
    assert checked == 4


def test_the_go_log_of_swe_smith(shared_data: Path) -> None:
    files = dict(members(shared_data / "swesmith_test_logs.tar.gz"))
    log = next(text for name, text in files.items() if "gin-gonic" in name)
    found = frameworks.go(log)
    assert found["TestBasicAuth"] == "PASSED" and "FAILED" in found.values() and len(found) > 300


LOG = """\
PASSED tests/test_a.py::test_one
PASSED tests/test_a.py::test_two[a b]
SKIPPED [1] tests/test_a.py:3: no
XFAIL tests/test_a.py::test_known - one day
ERROR tests/test_a.py::test_setup - OSError: gone
FAILED tests/test_a.py::test_two[a c] - assert 1 == 2
FAILED tests/test_a.py::test_dash[x - y] - assert 0
"""


def status(name: str, *, f2p: bool = False, parser: str = "pytest", log: str = LOG) -> str:
    found = results(log, parser, [name] if f2p else [], [] if f2p else [name])
    return found.failed.get(name, "ok")


def test_missing_is_not_passed() -> None:
    assert status("tests/test_a.py::test_three") == "missing"
    assert status("tests/test_a.py::test_setup") == "ERROR"


def test_ids_with_spaces_count_by_their_own_lines() -> None:
    assert status("tests/test_a.py::test_two[a b]") == "ok"
    assert status("tests/test_a.py::test_two[a c]") == "FAILED"
    assert status("tests/test_a.py::test_two[a d]") == "missing"
    assert status("tests/test_a.py::test_dash[x - y]") == "FAILED"


def test_a_truncated_id_stands_for_all_tests_that_begin_so() -> None:
    assert status("tests/test_a.py::test_two[a") == "FAILED"
    turned = "\n".join(reversed(LOG.splitlines())) + "\n"
    assert status("tests/test_a.py::test_two[a", log=turned) == "FAILED"
    assert status("tests/test_a.py::test_two[a", log=LOG.replace("FAILED", "PASSED")) == "ok"


def test_expected_to_fail_is_as_it_was_but_no_fix() -> None:
    assert status("tests/test_a.py::test_known") == "ok"
    assert status("tests/test_a.py::test_known", f2p=True) == "XFAIL"


def test_colour_hides_nothing() -> None:
    coloured = "\x1b[32mPASSED\x1b[0m tests/test_a.py::\x1b[1mtest_one\x1b[0m\n"
    assert status("tests/test_a.py::test_one", log=coloured) == "ok"


@pytest.mark.parametrize(
    ("parser", "log", "want"),
    [
        (
            "pytest_options",
            "PASSED t.py::t[/a/b/c]\nPASSED t.py::t[//a/b]\n",
            {"t.py::t[/c]": "PASSED", "t.py::t[//a/b]": "PASSED"},
        ),
        (
            "pytest_v2",
            "t.py::a PASSED\nt.py::b FAILED\nPASSED t.py::c\nt.py::d PASSED [ 3%]\n",
            {"t.py::a": "PASSED", "t.py::b": "FAILED", "t.py::c": "PASSED"},
        ),
        (
            "seaborn",
            "t.py::a PASSED [ 3%]\nFAILED t.py::b - x\nPASSED t.py::c\nERROR t.py::d\n",
            {"t.py::a": "PASSED", "t.py::b": "FAILED", "t.py::c": "PASSED"},
        ),
        ("matplotlib", "PASSED t.py::a[MouseButton.LEFT]\n", {"t.py::a[1]": "PASSED"}),
        (
            "sympy",
            "test_a ok\ntest_b F\ntest_c E\ntest_d f\ntest_e s\n  test_f (slow) ok  \ntest_g F     [FAIL]\n"
            "__\n__ a/b.py:test_g ___\n",
            {"a/b.py:test_g": "FAILED", "test_a": "PASSED", "test_b": "FAILED", "test_c": "ERROR", "test_f": "PASSED"},
        ),
        (
            "gotest",
            "--- PASS: TestA (0.00s)\n    --- FAIL: TestA/x (0.1s)\n--- SKIP: TestB (0s)\n",
            {"TestA": "PASSED", "TestA/x": "FAILED", "TestB": "SKIPPED"},
        ),
        (
            "cargo",
            "test a::b ... ok\ntest a::c ... FAILED\ntest d ... ignored\n",
            {"a::b": "PASSED", "a::c": "FAILED"},
        ),
        (
            "swesmith",
            "t.py::a PASSED [ 3%]\nt.py::b SKIPPED (no) [ 4%]\n",
            {"t.py::a": "PASSED", "t.py::b": "SKIPPED"},
        ),
        (
            "r2e",
            "PASSED r2e_tests/t.py::TestA::test_b\nFAILED r2e_tests/t.py::test_c - no\n",
            {"TestA.test_b": "PASSED", "test_c": "FAILED"},
        ),
        (
            "django",
            "test_a (app.T) ... ok\ntest_b (app.T)\nWords. ... FAIL\ntest_c (app.T) ... skipped 'x'\n"
            "test_d (app.T) ... Internal Server Error: /x/\nok\ntest_e (app.T) ... ERROR\nFAIL: test_b (app.T)\n",
            {
                "test_a (app.T)": "PASSED",
                "Words.": "FAILED",
                "test_c (app.T)": "SKIPPED",
                "test_d (app.T)": "PASSED",
                "test_e (app.T)": "ERROR",
                "test_b": "FAILED",
            },
        ),
    ],
)
def test_each_framework(parser: str, log: str, want: dict[str, str]) -> None:
    found = frameworks.PARSERS[parser](log)
    assert {test: found.get(test) for test in want} == want
    if parser != "r2e":
        assert found == want


def test_only_what_stands_between_the_run_s_own_markers_is_read() -> None:
    log = f"PASSED a\n{START} w1\nPASSED b\n{END} w1\nPASSED c\n"
    assert output_of(log, "w1") == "\nPASSED b\n"
    assert output_of(log, "w2") is None
    assert output_of(f"{START} w1\nPASSED b\n", "w1") is None
    assert output_of(f">>>>> Patch Apply Failed\n{log}", "w1") is None


def test_output_with_no_script_around_it_is_no_log() -> None:
    assert output_of("PASSED a\n") is None
    assert output_of("+ pytest -rA\nPASSED a\n") is not None
    assert output_of("+ pytest -rA\nPASSED a\n", "w1") is None


def test_an_unknown_parser_is_the_task_s_fault() -> None:
    with pytest.raises(VerifierError, match="no log parser"):
        results("", "nose", ["a"], [])


MUCH = READ_CAP - 200
HOSTILE = {
    "spaces before one more letter": ("pytest", "PASSED a" + " " * MUCH + "b\n", "a"),
    "every way to cut a line": ("r2e", "FAILED t.py::a" + " - b" * (MUCH // 4) + "\n", "a"),
    "brackets": ("gotest", "--- PASS: a" + " (b)" * (MUCH // 4) + "x\n", None),
    "brackets that close": ("gotest", "--- PASS: a" + " (b)" * (MUCH // 4) + "\n", "a" + " (b)" * (MUCH // 4 - 1)),
    "titles": ("sympy", "__ " + "a.py:" * (MUCH // 5) + "\n", None),
    "a title": ("sympy", "__ " + "a.py:" * (MUCH // 5) + "b __\n", "a.py:" * (MUCH // 5) + "b"),
    "endings": ("sympy", "test_a" + " ok" * (MUCH // 3) + "x\n", None),
    "torn once, never ended": ("django", "a ... Testing against Django installed in " * (MUCH // 43) + "\n", None),
    "torn on every line": ("django", "a ... Testing against Django installed in \n" * (MUCH // 44), None),
    "torn and ended nearly": ("django", "a ... Internal Server Error: /" * (MUCH // 30) + "\nok\n", "a"),
    "a torn line": ("django", "a ... Internal Server Error: /" * (MUCH // 30) + "x/\nok\n", "a"),
    "no end of a colour": ("pytest", "\x1b[" + "0" * MUCH + "\x1b[m\nPASSED a\n", "a"),
    "statuses": ("pytest_v2", "a PASSED" + " PASSED" * (MUCH // 7) + " x\n", None),
    "blank lines": ("cargo", "test" + "\n" * MUCH + "a ... x\n", None),
}  # fmt: skip


@pytest.mark.parametrize("how", HOSTILE)
def test_a_log_is_read_however_it_is_made(how: str) -> None:
    """16 MiB of what makes an expression try every way there is; with one that does this never ends."""
    parser, log, want = HOSTILE[how]
    found = results(log, parser, ["t.py::a b"], ["t.py::a - b"])
    assert len(log) <= READ_CAP and len(found.reported) <= 2
    assert want is None or want in found.reported


PIECES = st.sampled_from(
    [*"x \t\r\n_/", " - ", "::", ".py:", "\n__ ", " __\n", "\nPASSED ", "\nFAILED ", "\n--- PASS: ", " (", ")", "\nok"]
    + ["\nok\n", " ... ", "...", "Testing against Django installed in ", " silenced).", "Internal Server Error: /"]
    + ["System check identified no issues (0 silenced)"]
)  # fmt: skip
TORN = [
    re.compile(rf"^(.*?)\s\.\.\.\s{how}\nok$", re.MULTILINE)
    for how in (
        r"Testing against Django installed in (?s:.*?) silenced\)\.",
        r"Internal Server Error: /.*/",
        r"System check identified no issues \(0 silenced\)",
    )
]
GO = re.compile(r"^[ \t]*--- PASS: (.+) \(.+\)[ \t\r]*$", re.MULTILINE)
TITLE = re.compile(r"^_+ (\S+\.py:\S+) _+[ \t\r]*$", re.MULTILINE)
WHOLE = re.compile(r"^(PASSED|FAILED)[ \t]+(\S.*?)[ \t\r]*$", re.MULTILINE)


@given(st.lists(PIECES, max_size=16).map("".join))
@settings(max_examples=500)
def test_they_find_what_the_plain_expressions_find(log: str) -> None:
    torn = [set(frameworks._torn(log, *how)) for how in frameworks._DJANGO_TORN]
    assert torn == [set(how.findall(log)) for how in TORN]
    assert set(frameworks.go(log)) == set(GO.findall(log))
    assert set(frameworks.sympy(log)) == set(TITLE.findall(log))
    want: dict[str, set[str]] = {}
    for status, rest in WHOLE.findall(log):
        cuts = [at for at in range(len(rest)) if rest.startswith(" - ", at)] if status == "FAILED" else []
        for name in (rest, *(rest[:at] for at in cuts)):
            want.setdefault(name, set()).add(status)
    heaviest = {name: "FAILED" if "FAILED" in found else "PASSED" for name, found in want.items()}
    assert frameworks.pytest_whole(log, want) == heaviest


@given(st.sampled_from(sorted(frameworks.PARSERS)), st.text(max_size=200))
def test_no_text_makes_a_parser_raise(parser: str, text: str) -> None:
    found = results(text, parser, ["a"], ["b c"])
    assert set(found.reported.values()) <= set(frameworks.STATUS)
    assert set(found.passed) | set(found.failed) == {"a", "b c"}
