"""A verifier with an environment of its own: what reaches it, and that nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.task import Artifact, Collect, Environment, Separate, Task
from lego.verifier.grade import Nothing, Oracle, verify
from tests.sandbox.running import SMALL
from tests.verifier.shell_tasks import shell_task

pytestmark = pytest.mark.podman

PUBLISHED = Artifact("/logs/artifacts")
PAYS = "then echo 1; else echo 0; fi > /logs/verifier/reward.txt"


def apart(test: str, solve: str, *artifacts: Artifact, bundled: bool = False, **more: Any) -> Task:
    task = shell_task(f"if {test}; {PAYS}", solve, **more)
    roots = ("/logs/artifacts", *(one.source for one in artifacts))
    own = Environment(env={"WHERE": "apart"}, workdir="/app", workspace={} if bundled else task.environment.workspace)
    return replace(
        task,
        environment=replace(task.environment, roots=roots),
        tests={} if bundled else task.tests,
        separate=Separate(own, bundled, (PUBLISHED, *artifacts)),
    )


async def test_artifacts_are_carried_and_nothing_else(podman: Podman, busybox: str) -> None:
    test = "grep -q built /logs/artifacts/dist/a.whl && grep -q broken code.txt && test ! -e new && test $WHERE = apart"
    task = apart(
        test, "mkdir /logs/artifacts/dist; echo built > /logs/artifacts/dist/a.whl; echo x > new; echo x > code.txt"
    )
    verdict = await verify(podman, task, busybox, Oracle(), SMALL)
    assert (verdict.outcome, verdict.reward) == ("passed", 1.0), verdict
    assert verdict.detail["changed"] == ["/logs/artifacts/dist/a.whl"] and verdict.detail["carried"] == 3
    assert (await verify(podman, task, busybox, Nothing(), SMALL)).reward == 0.0


async def test_a_carried_folder_takes_the_place_of_the_images(podman: Podman, busybox: str) -> None:
    """Whole, files that nobody touched and all; what leads out of it, or is excluded, stays behind and is named."""
    lines = (
        "test -e pkg/a.py",
        "test ! -e pkg/b.py",
        "test ! -e pkg/x.log",
        "test ! -e pkg/etc",
        "test -L pkg/same",
        "test ! -u pkg/a.py",
    )
    solve = "rm pkg/b.py; touch pkg/x.log; ln -s /etc pkg/etc; ln -s a.py pkg/same; chmod u+s pkg/a.py"
    task = apart(" && ".join(lines), solve, Artifact("/app/pkg", ("*.log",)))
    verdict = await verify(podman, task, busybox, Oracle(), SMALL)
    assert verdict.reward == 1.0, verdict
    assert verdict.detail["not_carried"] == ["/app/pkg/etc"]


async def test_a_single_file_is_an_artifact_too(podman: Podman, busybox: str) -> None:
    task = apart(
        "grep -q mine /app/deep/result", "mkdir -p deep; echo mine > deep/result", Artifact("/app/deep/result")
    )
    assert (await verify(podman, task, busybox, Oracle(), SMALL)).reward == 1.0


async def test_hooks_are_run_when_the_solution_is_done_and_may_fail(podman: Podman, busybox: str) -> None:
    hooks = (Collect("false"), Collect("cp state /logs/artifacts/state"), Collect("sleep 1000", 0.2))
    task = replace(apart("grep -q done /logs/artifacts/state", "echo done > state"), collect=hooks)
    assert (await verify(podman, task, busybox, Oracle(), SMALL)).reward == 1.0


@pytest.fixture
def own_image(podman: Podman, busybox: str) -> Iterator[str]:
    """Tests and all in it, not even executable."""
    image = "localhost/lego-test/verifier:1"
    test = f"#!/bin/sh\nif grep -q right /logs/artifacts/answer; {PAYS}\n"
    test += 'test ! -e /logs/artifacts/answer || echo "# late" >> /tests/test.sh\n'
    line = "mkdir /tests; printf '%s' \"$0\" > /tests/test.sh"
    made = podman.cli("create", busybox, "/bin/sh", "-c", line, test).stdout.decode().strip()
    try:
        podman.cli("start", "--attach", made)
        podman.cli("commit", made, image)
        yield image
    finally:
        podman.cli("rm", made)
        podman.cli("rmi", image, check=False)


async def test_an_image_of_its_own_brings_its_tests(podman: Podman, busybox: str, own_image: str) -> None:
    task = apart("", "echo right > /logs/artifacts/answer", bundled=True)
    verdict = await verify(podman, task, busybox, Oracle(), SMALL, separate=own_image)
    assert (verdict.outcome, verdict.reward) == ("passed", 1.0), verdict
    assert verdict.detail["seen"]["rewritten"] == ("/tests/test.sh",)
    nothing = await verify(podman, task, busybox, Nothing(), SMALL, separate=own_image)
    assert nothing.reward == 0.0 and nothing.detail["seen"]["rewritten"] == ()


async def test_what_a_submission_holds_elsewhere_is_not_carried(podman: Podman, busybox: str) -> None:
    """A stored submission is whatever its roots were; the verifier takes the artifacts of it alone."""
    task = apart("grep -q mine /logs/artifacts/x && test ! -e /app/evil", "true")
    entries = (Entry("/logs/artifacts/x", "file", 0o644, b"mine\n"), Entry("/app/evil", "file", 0o644, b""))
    assert (await verify(podman, task, busybox, Submission(("/app",), entries), SMALL)).reward == 1.0
