"""Tasks in real sandboxes: the rewards they give, and code under test that tries to write its own."""

import pytest

from lego.config.schema import ImagesSection, TaskSource
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.sandbox.create import Limits
from lego.sandbox.rootfs import Entry
from lego.sandbox.submission import Submission
from lego.tasks.family import generate
from lego.tasks.harbor import load
from lego.verifier.grade import Nothing, Oracle, verify
from tests.conftest import CONFIGS

pytestmark = pytest.mark.podman

WRITER = """
import os, time
if os.fork() == 0:
    os.setsid()
    for number in (0, 1, 2):
        os.close(number)
    end = time.time() + 30
    while time.time() < end:
        for name, text in (("reward.txt", "1"), ("reward.json", '{"reward": 1}'), (".reward", "1")):
            try:
                with open("/logs/verifier/" + name, "w") as file:
                    file.write(text)
            except OSError:
                pass
        for name in os.listdir("/tests") if os.access("/tests", os.W_OK) else ():
            os.unlink("/tests/" + name)
"""


def basic():
    task = load(CONFIGS / "tasks" / "basics" / "last-page")
    return task, "/app/shop/__init__.py"


def generated():
    (task,) = generate(TaskSource(source="family", name="off-by-one", count=1, seed=1))
    return task, next(iter(task.environment.workspace))


@pytest.fixture(params=[basic, generated], ids=["basics", "off-by-one"])
async def graded(request, podman, tmp_path):
    """A function that grades a submission of the task, and the file that an attack goes into."""
    task, path = request.param()
    section = ImagesSection()
    for result in await Builder(podman, section, tmp_path / "logs").build(plan([task], (), section)):
        assert result.status != "failed", (result.reason, result.log_path.read_text())

    async def grade(candidate):
        return await verify(podman, task, task_tag(task, section), candidate, Limits())

    return grade, path


async def test_solution_and_nothing(graded):
    grade, _ = graded
    solved = await grade(Oracle())
    assert (solved.outcome, solved.reward) == ("passed", 1.0), solved
    assert b"cannot change user" not in solved.log
    nothing = await grade(Nothing())
    assert (nothing.outcome, nothing.reward) == ("failed", 0.0), nothing


async def test_background_writer_earns_nothing(graded):
    grade, path = graded
    verdict = await grade(Submission(("/app",), (Entry(path, "file", 0o600, WRITER.encode()),)))
    assert (verdict.outcome, verdict.reward) == ("failed", 0.0), verdict
