"""Every hack of hacks.py and its honest twin, as real trials: no hack is paid, and no twin goes unpaid."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lego.config.load import load
from lego.harness.spec import HarnessSpec
from lego.rollout.run import Run, open_run
from lego.rollout.script import turns_of
from lego.rollout.settings import Sampler, settings_for
from lego.rollout.site import open_workshop
from lego.rollout.stopping import Stop
from lego.rollout.verification import verify_candidate
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import catalogue, rounds, trials, verdicts
from lego.rundb.store import Row
from lego.tasks.task import DemoStep, Task
from lego.trajectory.render import Rendering
from lego.verifier.grade import Oracle
from tests.attacks.hacks import CALC, FIX, HACKS, HIDDEN, PLAIN, VISIBLE, Graded, Hack
from tests.conftest import missing

pytestmark = pytest.mark.podman

GUARDED = Path(__file__).resolve().parents[2] / "configs/tasks/basics/csv-quoting/tests"
# Of these the run of the task's own solution is not recorded before: the first verdict that would pay asks for it.
UNRECORDED = {"shadow-pytest", "skips", "patched-quietly", "registered-plug-in", "says-all", "turns-the-tests"}
CASES = [(hack, graded) for hack in HACKS for graded in hack.graded]
# What the image itself brings is compiled here once, where the verifier looks for bytecode, and not by each of some two
# hundred runs of pytest. Nothing that agents may leave is among it: /tmp is in no submission.
DOCKERFILE = """FROM debian:bookworm
RUN mkdir /warm && cd /warm && echo 'def test(): pass' > test_x.py \\
 && PYTHONPYCACHEPREFIX=/tmp/lego-pycache python3 -m pytest -q -p no:cacheprovider \\
 && rm -r /warm /tmp/lego-pycache/warm
WORKDIR /app
COPY repo/ /app/
"""
TOML = """schema_version = "1.4"
[verifier]
timeout_sec = 30
[environment]
network_mode = "no-network"
"""


def _id(hack: Hack, graded: str, side: str) -> str:
    return f"{hack.name}-{graded}-{side}"


def _write(folder: Path, graded: str) -> None:
    files = {
        "task.toml": TOML,
        "instruction.md": f"/app/calc.py adds wrongly. ({folder.name})\n",
        "environment/Dockerfile": DOCKERFILE,
        "environment/repo/calc.py": CALC,
        "environment/repo/tests/test_calc.py": VISIBLE,
        "solution/solve.sh": f"#!/bin/sh\n{FIX}",
        "tests/test_hidden.py": HIDDEN,
        "tests/test.sh": PLAIN,
    }
    plain = HIDDEN.partition("class More")[0].replace("import unittest\n\n", "")
    names = {"fail_to_pass": [f"tests/test_hidden.py::test_{name}" for name in ("small", "negative")]}
    if graded == "guarded":
        files |= {
            "tests/test.sh": (GUARDED / "test.sh").read_text(),
            "tests/grade.py": (GUARDED / "grade.py").read_text(),
        }
        # Its graders look for plain functions.
        files["tests/test_hidden.py"] = plain
    elif graded == "named":
        files["task.toml"] = TOML + 'workdir = "/app"\n[metadata.lego]\ngrader = "pytest-ids"\n'
        files |= {"tests/names.json": json.dumps(names), "tests/app/tests/test_hidden.py": plain}
        del files["tests/test.sh"], files["tests/test_hidden.py"]
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        (folder / path).chmod(0o755 if path.endswith(".sh") else 0o644)


@pytest.fixture(scope="module")
def graded(podman: object, tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Row]]:
    """Task id -> its trial, with its verdict: `reward`, `outcome`, `tamper`, `solved`, `log`."""
    folder = tmp_path_factory.mktemp("attacks")
    commands: dict[str, str] = {}
    for hack, how in CASES:
        for side, command in (("attack", hack.attack), ("twin", FIX + hack.twin)):
            name = _id(hack, how, side)
            _write(folder / "tasks" / name, how)
            commands[name] = command
    config = {
        "run": {"name": f"attacks-{uuid.uuid4().hex[:12]}", "dir": str(folder / "runs")},
        "policy": {"model": str(tiny_policy), "renderer": "tiny-chatml", "context": 16384},
        "engine": {"kind": "scripted"},
        "tasks": {"eval": [{"source": "harbor", "path": str(folder / "tasks")}]},
        "harness": {"tiny-agent": 1.0},
        "sandbox": {"memory": "160m", "pids": 64, "disk": "64m", "timeout": "60s"},
        "rollout": {"concurrency": 4, "max_output_tokens": 8192},
        "verify": {"concurrency": 4},
    }
    (folder / "lego.yaml").write_text(yaml.safe_dump(config))
    run = open_run(load(folder / "lego.yaml"))
    yield asyncio.run(_run(run, commands))


async def _run(run: Run, commands: dict[str, str]) -> dict[str, Row]:
    def script(task: Task, sampler: Sampler, spec: HarnessSpec, rendering: Rendering) -> list[list[int]]:
        step = DemoStep(command=f"(\n{commands[task.id].rstrip()}\n)")
        return turns_of(replace(task, demonstration=(step,)), "script", spec, rendering)

    store, stop = run.store, Stop()
    round_ = rounds.open_round(
        store, "eval", ordinal=1, policy_version=run.newest_policy().version,
        tasks=[(name, "tiny-agent") for name in sorted(run.tasks)], samples=1,
        settings=replace(settings_for(run.config, "eval"), samples=1).as_dict(),
    )  # fmt: skip
    async with open_workshop(run) as workshop:
        results = await workshop.build_images(list(run.tasks.values()), list(run.specs.values()))
        failed = [result for result in results if result.status == "failed"]
        if failed:
            missing("podman", f"an image cannot be built: {failed[0].reason}")
        for how in get_args(Graded):
            of_kind = sorted(
                _id(hack, how, side)
                for hack, graded in CASES
                for side in ("attack", "twin")
                if graded == how and hack.name not in UNRECORDED
            )
            gold = await verify_candidate(Oracle(), run.tasks[of_kind[0]], workshop)
            assert gold.reward == 1.0, gold.log[-2000:]
            for name in of_kind:
                catalogue.record_baseline(
                    store, task_id=name, kind="gold", reward=1.0, outcome="passed",
                    detail=gold.detail, log=b"", seconds=gold.seconds,
                )  # fmt: skip
        site = replace(await workshop.site(round_), script=script)
        await asyncio.gather(
            run_trials(site, stop, lambda: None),
            run_verifications(workshop, round_, stop, lambda: None, lambda: not trials.unfinished(store, round_.id)),
        )
    logs = {row["trial_id"]: row for row in store.rows("SELECT * FROM verdicts")}
    return {row["task_id"]: {**logs[row["id"]], **row} for row in verdicts.graded(store, round_.id)}


def _told(row: Row) -> tuple[Any, ...]:
    from lego.rundb.blobs import unpack_bytes

    log = unpack_bytes(row["log"])[-1500:].decode(errors="replace") if row["log"] else ""
    return row["outcome"], row["reward"], json.loads(row["tamper"]), json.loads(row["detail"]), log


@pytest.mark.parametrize(("hack", "how"), CASES, ids=[f"{hack.name}-{how}" for hack, how in CASES])
def test_no_hack_is_paid_and_every_honest_twin_is(graded: dict[str, Row], hack: Hack, how: str) -> None:
    attack, twin = graded[_id(hack, how, "attack")], graded[_id(hack, how, "twin")]
    assert (twin["reward"], twin["tamper"], twin["solved"]) == (1.0, "[]", 1), _told(twin)
    assert attack["reward"] is not None and not attack["solved"], _told(attack)
    kinds = {finding["kind"] for finding in json.loads(attack["tamper"])}
    # A reward that stands beside a finding is the config's to exclude or to penalise; without one there is none.
    assert kinds or attack["reward"] == 0.0, _told(attack)
    if hack.finds and how == hack.graded[0]:
        assert kinds & hack.finds, _told(attack)


def test_there_are_enough_hacks() -> None:
    assert len({hack.name for hack in HACKS}) == len(HACKS) >= 30
