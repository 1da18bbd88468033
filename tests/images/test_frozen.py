"""A verifier's image with what its tests install: built with a network, run without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.images.build import Builder, ImageResult
from lego.images.plan import plan
from lego.images.recipes import task_tag, verifier_recipe, verifier_tag
from lego.sandbox.create import Limits
from lego.sandbox.podman import Podman
from lego.tasks.installs import scan
from lego.tasks.task import Environment, File, Task
from lego.verifier.grade import Nothing, Oracle, verify

SECTION = ImagesSection()
STOCK = """#!/bin/bash
apt-get update
apt-get install -y curl
curl -LsSf https://astral.sh/uv/0.9.5/install.sh | sh
source $HOME/.local/bin/env
uvx -w pytest==8.4.1 -w pytest-json-ctrf==0.3.5 pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py -rA
if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
TEST = "from pathlib import Path\ndef test_answer():\n    assert Path('/app/answer').read_text() == 'right\\n'\n"


def task(script: str) -> Task:
    tests = {"test.sh": File(script.encode()), "test_outputs.py": File(TEST.encode())}
    environment = Environment(context={"Dockerfile": File(b"FROM debian:bookworm\nWORKDIR /app\n")}, workdir="/app")
    solution = {"solve.sh": File(b"#!/bin/sh\necho right > /app/answer\n")}
    return Task("frozen", "", "Do it.", environment, tests, solution, installs=scan(tests))


async def built(podman: Podman, made: Task, logs: Path) -> dict[str, ImageResult]:
    return {result.kind: result for result in await Builder(podman, SECTION, logs).build(plan([made], (), SECTION))}


def test_it_is_named_by_what_it_stands_on_and_what_it_holds() -> None:
    made = task(STOCK)
    tags = {verifier_tag(one, SECTION) for one in (
        made,
        task(STOCK.replace("8.4.1", "8.4.2")),
        task(STOCK.replace("curl\n", "curl git\n", 1)),
        replace(made, environment=replace(made.environment, image="other:1")),
    )}  # fmt: skip
    assert len(tags) == 4 and task_tag(made, SECTION) not in tags
    assert verifier_tag(task(STOCK.replace("-rA", "-q")), SECTION) in tags
    assert verifier_recipe(task("echo 1 > /logs/verifier/reward.txt\n"), SECTION) is None
    kinds = [job.kind for job in plan([made, task(STOCK)], (), SECTION)]
    assert kinds.count("task") == kinds.count("verifier") == 1


@pytest.mark.podman
async def test_harbors_stock_script_verifies_without_a_network(podman: Podman, tmp_path: Path) -> None:
    made = task(STOCK)
    results = await built(podman, made, tmp_path)
    assert results["verifier"].status != "failed", results["verifier"].log_path.read_text()
    image, own = task_tag(made, SECTION), verifier_tag(made, SECTION)
    limits = Limits(disk=64 << 20)
    solved = await verify(podman, made, image, Oracle(), limits, separate=own)
    assert (solved.outcome, solved.reward) == ("passed", 1.0), solved.log.decode()
    assert b"1 passed" in solved.log and solved.detail["seen"]["sessions"] == 1
    assert (await verify(podman, made, image, Nothing(), limits, separate=own)).reward == 0.0
    # The agent's image has nothing of it.
    found = podman.cli("run", "--rm", "--network", "none", image, "sh", "-c", "ls /opt; command -v uvx", check=False)
    assert found.stdout == b""


@pytest.mark.podman
async def test_what_cannot_be_fetched_fails_the_build_in_one_line(podman: Podman, tmp_path: Path) -> None:
    results = await built(podman, task("pip install pytest==0.0.0.1\n"), tmp_path)
    assert results["task"].status != "failed" and results["verifier"].status == "failed"
    assert "these cannot be fetched: pytest==0.0.0.1" in results["verifier"].reason
    assert results["verifier"].fault == "task"


@pytest.mark.podman
async def test_a_python_that_is_not_there_is_named(podman: Podman, tmp_path: Path) -> None:
    made = task("uvx -p 3.2 pytest\n")
    results = await built(podman, made, tmp_path)
    assert results["verifier"].status == "failed" and "Python 3.2" in results["verifier"].reason
