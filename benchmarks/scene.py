"""What the benchmarks of whole trials run: four tiny Harbor tasks, a run over them, and a bare loop over podman."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from lego.config.load import load
from lego.config.schema import ImagesSection
from lego.errors import ImageError
from lego.images.build import Builder
from lego.images.plan import plan
from lego.rollout.run import open_run
from lego.rollout.site import Workshop, open_workshop
from lego.sandbox.podman import Podman

_BUGS = (
    ("add", "def f(a, b):\n    return a - b\n", "s/a - b/a + b/", "f(2, 3) == 5 and f(0, 0) == 0"),
    (
        "clamp",
        "def f(x, lo, hi):\n    return max(hi, min(lo, x))\n",
        "s/max(hi, min(lo/max(lo, min(hi/",
        "f(5, 0, 3) == 3",
    ),
    ("reverse", "def f(s):\n    return s[::1]\n", "s/::1/::-1/", "f('abc') == 'cba'"),
    ("even", "def f(n):\n    return n % 2 == 1\n", "s/== 1/== 0/", "f(2) and not f(3)"),
)
_TOML = """schema_version = "1.4"
[task]
name = "bench/{name}"
[agent]
timeout_sec = 120
[verifier]
timeout_sec = 120
[environment]
network_mode = "no-network"
workdir = "/app"
cpus = 1
memory_mb = 512
storage_mb = 1024
"""
_TEST = """#!/bin/bash
cd /app
if python3 -c "from mod import f; assert {check}"; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
_CONFIG = """run: {{name: bench, dir: {folder}/runs}}
policy: {{model: tiny, renderer: tiny-chatml}}
engine: {{kind: scripted}}
tasks: {{train: [{{source: harbor, path: {folder}/tasks}}]}}
harness: {{tiny-agent: 1.0}}
sandbox: {{memory: 512m, disk: 1g, timeout: 120s}}
"""


def write_tasks(folder: Path) -> list[Path]:
    """Tasks whose own work costs next to nothing: a line of sed solves one, a line of Python tests it."""
    tasks = []
    for name, source, fix, check in _BUGS:
        files = {
            "task.toml": _TOML.format(name=name),
            "instruction.md": "Fix the function f in /app/mod.py.\n",
            "environment/mod.py": source,
            "environment/Dockerfile": "FROM debian:bookworm\nWORKDIR /app\nCOPY mod.py /app/mod.py\n",
            "solution/solve.sh": f"#!/bin/bash\nsed -i '{fix}' /app/mod.py\n",
            "tests/test.sh": _TEST.format(check=check),
        }
        for path, text in files.items():
            target = folder / name / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
            target.chmod(0o755 if target.suffix == ".sh" else 0o644)
        tasks.append(folder / name)
    return tasks


async def base_image(podman: Podman, folder: Path) -> str:
    """The tag of the default base image, built if it is missing, its log below `folder`. Raises ImageError."""
    section = ImagesSection()
    (base,) = await Builder(podman, section, folder / "logs").build(plan((), (), section))
    if base.status == "failed":
        raise ImageError(f"the base image failed: {base.reason}", hint=f"log: {base.log_path}")
    return base.tag


@asynccontextmanager
async def open_scene(folder: Path) -> AsyncIterator[tuple[Workshop, list[Path]]]:
    """A workshop whose images are built, and the folders of its tasks in the order of their ids' names."""
    paths = write_tasks(folder / "tasks")
    config = folder / "bench.yaml"
    config.write_text(_CONFIG.format(folder=folder))
    run = open_run(load(config))
    async with open_workshop(run) as workshop:
        results = await workshop.build_images(list(run.tasks.values()), list(run.specs.values()))
        failed = [result for result in results if result.status == "failed"]
        if failed:
            raise RuntimeError(f"the {failed[0].kind} image failed: {failed[0].reason}, see {failed[0].log_path}")
        yield workshop, paths


def bare_oracle(podman: Podman, task: Path, image: str) -> float:
    """One oracle trial as a shell script would do it, nothing recorded and one container for both halves.

    Create, start, copy the solution in, run it, copy the tests in, run them, read the reward, remove. Returns the
    reward.
    """
    name = f"bench-{uuid.uuid4().hex[:10]}"

    def sh(*command: str) -> str:
        done = subprocess.run(
            ["podman", *command],
            env=dict(podman.env),
            check=True,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout

    limits = ("--network", "none", "--memory", "512m", "--cpus", "1")
    sh("create", "--name", name, *limits, image, "sh", "-c", "sleep infinity")
    try:
        sh("start", name)
        sh("cp", f"{task}/solution", f"{name}:/solution")
        solve = "mkdir -p /logs/verifier /logs/agent; /solution/solve.sh > /logs/agent/oracle.txt 2>&1"
        sh("exec", name, "bash", "-c", solve)
        sh("cp", f"{task}/tests", f"{name}:/tests")
        sh("exec", name, "bash", "-c", "/tests/test.sh > /logs/verifier/test-stdout.txt 2>&1")
        return float(sh("exec", name, "cat", "/logs/verifier/reward.txt"))
    finally:
        sh("rm", "-f", "-t", "0", name)


def all_passed(rewards: Sequence[float | None], what: str) -> None:
    """A number counts only if the work was done."""
    if not rewards or any(reward != 1.0 for reward in rewards):
        raise RuntimeError(f"{what}: the rewards are {list(rewards)}, not all 1")
