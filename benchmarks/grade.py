"""Milliseconds to read and judge a test log, beside swebench 4.1.0's own parser and report on the same logs.

The logs are real ones of SWE-bench instances: SWEBENCH_DATA names the folder with real_logs.tar.gz and
swebench_verified_500.jsonl.gz. SWEBENCH_PYTHON names a Python that has swebench (it is large, and may live apart); by
default this one. Both sides give a verdict on every log in every pass, and the verdicts are compared. Milliseconds are
of the processor, so that a busy machine changes them little.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.measure import Measure, interleaved
from lego.tasks.swebench import Options, make
from lego.tasks.swebench_recipes import Recipe
from lego.tasks.swebench_rows import parse, read
from lego.verifier.logs.named import results, test_output

_REPEATS = 5
_IMPORTS = 3
_PASSES = 10
_FORGED = "exploit.exploit.log"
# Judges each log of its standard input as swebench does, and prints the verdicts and the seconds of one pass.
_PEER = """
import json, sys, time
from types import SimpleNamespace
from swebench.harness.grading import get_eval_tests_report, get_resolution_status
from swebench.harness.log_parsers import MAP_REPO_TO_PARSER
logs = json.load(sys.stdin)
def judge(log):
    spec = SimpleNamespace(repo=log["repo"], version="", instance_id="")
    found = MAP_REPO_TO_PARSER[log["repo"]](log["text"], spec)
    gold = {"instance_id": "", "FAIL_TO_PASS": log["fail_to_pass"], "PASS_TO_PASS": log["pass_to_pass"]}
    return get_resolution_status(get_eval_tests_report(found, gold)) == "RESOLVED_FULL"
verdicts = [judge(log) for log in logs]
begun = time.process_time()
for _ in range(PASSES):
    verdicts = [judge(log) for log in logs]
print(json.dumps([(time.process_time() - begun) / PASSES, verdicts]))
""".replace("PASSES", str(_PASSES))


def run() -> list[Measure]:
    """Per log: reading and judging; once: importing what does it."""
    data = os.environ.get("SWEBENCH_DATA")
    if not data:
        print("grade: left out; SWEBENCH_DATA must name the folder of the rows and the logs", file=sys.stderr)
        return []
    python = os.environ.get("SWEBENCH_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import swebench.harness.grading"], capture_output=True).returncode != 0:
        print("grade: left out; no swebench here: SWEBENCH_PYTHON names a Python that has it", file=sys.stderr)
        return []
    logs = _logs(Path(data))
    verdicts: dict[str, list[bool]] = {}
    asked = json.dumps(logs)

    def ours() -> float:
        begun = time.process_time()
        for _ in range(_PASSES):
            verdicts["ours"] = _judge_all(logs)
        return (time.process_time() - begun) / _PASSES / len(logs) * 1e3

    def theirs() -> float:
        done = subprocess.run([python, "-c", _PEER], input=asked, capture_output=True, text=True, check=True)
        seconds, verdicts["peer"] = json.loads(done.stdout)
        return float(seconds) / len(logs) * 1e3

    taken = interleaved({"ours": ours, "peer": theirs}, _REPEATS)
    _compare(logs, verdicts)
    imports = interleaved(
        {
            "ours": _timed(sys.executable, "from lego.verifier.logs import named"),
            "peer": _timed(python, "from swebench.harness import grading, log_parsers"),
        },
        _IMPORTS,
    )
    beside = "swebench 4.1.0"
    return [
        Measure(f"a log, {len(logs)} real ones", "CPU ms", taken["ours"], taken["peer"], beside, "<= 1 ms"),
        Measure("import", "s", imports["ours"], imports["peer"], beside),
    ]


def _judge_all(logs: list[dict[str, Any]]) -> list[bool]:
    found = []
    for log in logs:
        output = test_output(log["text"])
        judged = output and results(output, log["parser"], log["fail_to_pass"], log["pass_to_pass"])
        found.append(bool(judged and judged.resolved))
    return found


def _compare(logs: list[dict[str, Any]], verdicts: dict[str, list[bool]]) -> None:
    for log, ours, peer in zip(logs, verdicts["ours"], verdicts["peer"], strict=True):
        if (log["name"] == _FORGED and ours) or (log["name"] != _FORGED and ours != peer):
            raise SystemExit(f"grade: {log['name']}: ours {ours}, swebench {peer}: nothing was measured")


def _logs(folder: Path) -> list[dict[str, Any]]:
    rows = {}
    for where, raw in read(folder / "swebench_verified_500.jsonl.gz"):
        rows[raw["instance_id"]] = parse(raw, where)
    rows["exploit"] = rows["pallets__flask-5014"]
    found = []
    with tarfile.open(folder / "real_logs.tar.gz") as tar:
        for member in sorted(tar, key=lambda one: one.name):
            file = tar.extractfile(member) if member.name.endswith(".log") else None
            name = Path(member.name).name
            row = rows.get(name.split(".")[0])
            if file is not None and row is not None:
                parser = make(row, Options(), _NO_RECIPE, {}, name).grading.parser
                found.append(
                    {
                        "name": name,
                        "text": file.read().decode(errors="replace"),
                        "repo": row.repo,
                        "parser": parser,
                        "fail_to_pass": row.fail_to_pass,
                        "pass_to_pass": row.pass_to_pass,
                    }
                )
    return found


_NO_RECIPE = Recipe(
    sdist="",
    sdist_file="",
    sdist_sha256="",
    python="3.11",
    install="true",
    test_cmd="true",
    pip_packages=(),
    test_files=(),
)
"""Stands for a recipe where only the grading of a row is of interest."""


def _timed(python: str, statement: str) -> Callable[[], float]:
    code = f"import time; begun = time.perf_counter(); {statement}; print(time.perf_counter() - begun)"

    def once() -> float:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
        return float(done.stdout.split()[-1])

    return once
