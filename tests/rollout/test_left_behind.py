"""What an agent leaves for the next start of its own container: never a fault of the machine's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lego.errors import SandboxError, Unfit
from lego.rollout.steps import Walked, walk
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec
from lego.sandbox.ending import Ending
from lego.sandbox.podman import Podman, Refused
from lego.sandbox.submission import Submission, collect
from lego.tasks.task import Collect, File, Stage, Step, Task
from lego.verifier.bench import run_hooks
from lego.verifier.verdict import Verdict
from tests.sandbox.busybox import busybox_image
from tests.sandbox.running import SMALL
from tests.verifier.shell_tasks import shell_task

pytestmark = pytest.mark.podman

LOOP = "cd /; rm -rf /app; ln -s /app /app"
FILE = "echo mine > /app/data"
MOUNT = "mv /run /was; ln -s /run /run"
USER = "echo root:x:first:0:root:/root:/bin/sh > /etc/passwd"


@pytest.fixture(scope="module")
def image(podman: Podman) -> str:
    return busybox_image(podman)


def two_steps() -> Task:
    later = Stage({"/app/data/set/x": File(b"x")})
    return replace(shell_task(), steps=(Step("one", shell_task()), Step("two", replace(shell_task(), stages=(later,)))))


async def walked(podman: Podman, image: str, line: str) -> Walked:
    async with open_box(podman, BoxSpec(image, SMALL, user="root", several=True)) as box:

        async def run(one: Task) -> Ending:
            box.put(one.stages[-1].files if one.stages else {})
            return await box.run(["sh", "-c", line if not one.stages else "true"])

        async def hand_in(one: Task) -> Submission:
            await run_hooks(box, one)
            return await collect(box, ["/app"])

        async def judge(one: Task, left: Submission) -> Verdict:
            raise AssertionError("no step asks for a reward")

        return await walk(two_steps(), run, hand_in, judge, lambda: False)


@pytest.mark.parametrize("line", [LOOP, FILE, MOUNT, USER])
async def test_a_step_that_cannot_begin_in_it_is_not_begun(podman: Podman, image: str, line: str) -> None:
    done = await walked(podman, image, line)
    assert [told["ending"].partition(":")[0] for told in done.told] == ["exit", "not begun"]
    assert done.submission.parts == (done.submission,), "the second step counts as one that was not begun"
    assert done.ending.rc == 0


async def test_a_folder_that_a_step_wants_may_be_there(podman: Podman, image: str) -> None:
    done = await walked(podman, image, "mkdir -p /app/data/set; echo mine > /app/data/set/x")
    assert [told["ending"] for told in done.told] == ["exit", "exit"] and len(done.submission.parts) == 2


@pytest.mark.parametrize("line", [LOOP, MOUNT])
async def test_a_hook_that_cannot_begin_in_it_is_left_out(podman: Podman, image: str, line: str) -> None:
    task = replace(shell_task(), collect=(Collect("echo collected > /app/new", 20.0),))
    async with open_box(podman, BoxSpec(image, SMALL, several=True)) as box:
        await box.run(["sh", "-c", f"echo done > /app/code.txt; {line}"])
        await run_hooks(box, task)
        left = await collect(box, ["/app"])
    assert "/app/new" not in left.paths()
    assert ("/app", "special") in [(drop.path, drop.reason) for drop in left.dropped] or "/app/code.txt" in left.paths()


async def test_the_machines_own_refusal_is_the_machines(
    podman: Podman, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman says no to the second start: for good, and then only that once."""
    real, says_no = podman.request, [99]

    def request(method: str, path: str, **how: object) -> object:
        if path.endswith("/start") and says_no[0]:
            says_no[0] -= 1
            raise Refused("podman refused it: fork/exec /usr/bin/conmon: cannot allocate memory")
        return real(method, path, **how)  # type: ignore[arg-type]

    async with open_box(podman, BoxSpec(image, SMALL, several=True)) as box:
        await box.run(["true"])
        monkeypatch.setattr(podman, "request", request)
        with pytest.raises(SandboxError, match="cannot allocate memory") as raised:
            await box.run(["true"])
        assert not isinstance(raised.value, Unfit)
    async with open_box(podman, BoxSpec(image, SMALL, several=True)) as box:
        says_no[0] = 0
        await box.run(["true"])
        says_no[0] = 1
        assert (await box.run(["echo", "again"])).stdout == b"again\n"
