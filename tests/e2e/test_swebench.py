"""A published instance in our own sandbox: what its image holds, what is paid for, and the hook that forges logs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lego.config.load import load as load_config
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.load import load_tasks
from lego.tasks.task import Task
from lego.verifier.grade import Candidate, Nothing, Oracle, verify
from tests.conftest import CONFIGS, missing

pytestmark = [pytest.mark.podman, pytest.mark.slow]

INSTANCE = "pallets__flask-5014"
LIMITS = Limits(memory=1 << 30, pids=256, disk=512 << 20)
# As in SWE-bench issue 631: every report says passed, 60 lines of it, and pytest ends with 0.
HOOK = b"""
import pytest
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.when == "call":
        report.outcome, report.longrepr = "passed", None
"""
LOOK = """
git -C /testbed rev-list --all --count
/opt/env/bin/python -c 'import pip' 2>/dev/null && echo pip
find / -xdev -name '*.whl' -not -path '/proc/*' | head -n 3
grep -rl test_empty_name_not_allowed /testbed | head -n 3
echo done
"""


@pytest.fixture(scope="module")
def task(shared_data: Path) -> Iterator[Task]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEBENCH_DATA", str(shared_data))
        source = load_config(CONFIGS / "swebench-sdists.yaml").config.tasks.train
    (found,) = [one for one in load_tasks(source) if one.id == INSTANCE]
    yield found


@pytest.fixture
async def image(podman: Podman, task: Task, tmp_path: Path) -> str:
    """Built only where that is asked for (LEGO_REQUIRE=swebench): it needs a package index, and minutes."""
    section = load_config(CONFIGS / "swebench-sdists.yaml", ["tasks.train=[]"]).config.images
    tag = task_tag(task, section)
    if podman.request("get", f"/images/{tag.replace('/', '%2F')}/json", allow=(404,)).status_code == 200:
        return tag
    if "swebench" not in os.environ.get("LEGO_REQUIRE", "").split(","):
        missing("swebench", f"{INSTANCE} has no image yet; LEGO_REQUIRE=swebench builds it")
    for result in await Builder(podman, section, tmp_path / "logs").build(plan([task], (), section)):
        assert result.status != "failed", (result.reason, result.log_path.read_text()[-2000:])
    return tag


async def test_the_agent_s_image_holds_neither_fix_nor_hidden_tests(podman: Podman, task: Task, image: str) -> None:
    async with open_box(podman, BoxSpec(image, LIMITS)) as box:
        ending = await box.run(["/bin/sh", "-c", LOOK])
    assert ending.stdout.decode().split() == ["1", "done"], ending.stdout.decode()


@pytest.mark.parametrize(
    ("candidate", "reward"),
    [
        (Oracle(), 1.0),
        (Nothing(), 0.0),
        (Submission(("/testbed",), (Entry("/testbed/conftest.py", "file", 0o644, HOOK),)), 0.0),
    ],
    ids=["solution", "nothing", "forged log"],
)
async def test_only_the_fix_is_paid(
    podman: Podman, task: Task, image: str, candidate: Candidate, reward: float
) -> None:
    verdict = await verify(podman, task, image, candidate, LIMITS)
    assert verdict.reward == reward, (verdict.detail, verdict.log[-2000:].decode(errors="replace"))
    if isinstance(candidate, Submission):
        assert "canary" in verdict.detail and verdict.detail["named_passed"] == verdict.detail["named"]
