from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from lego.config.load import Loaded
from lego.config.schema import Config, RunSection, TaskSource, TasksSection
from lego.errors import ImageError, SandboxError, VerifierError
from lego.rollout import baselines
from lego.rollout.baselines import BaselineResult, check_tasks
from lego.rollout.health import INFRA_STREAK
from lego.rollout.run import Run, open_run
from lego.rollout.site import Workshop
from lego.tasks.task import Task
from lego.verifier.grade import Nothing, Oracle
from lego.verifier.verdict import Verdict

Answer = Callable[[Task, bool], Verdict]
"""What a verification says, given whether it was the solution's."""


class Bench:
    """Stands for a workshop; `unbuilt`: tasks whose image does not build."""

    def __init__(self, run: Run, unbuilt: tuple[str, ...] = ()) -> None:
        self.run, self.unbuilt = run, unbuilt

    def copies(self, task: Task, made: dict[str, str]) -> list[str]:
        return [f"/opt/late is {path}" for path in made]

    def refuse_unbuilt(self, task: Task) -> None:
        if task.id in self.unbuilt:
            raise ImageError(f"the image of {task.id} does not build: no such package", fault="task")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    tasks = TasksSection([TaskSource("family", name="off-by-one", count=8, seed=1)])
    config = Config(run=RunSection(name="r", dir=str(tmp_path)), tasks=tasks, harness={"tiny-agent": 1.0})
    config.verify.concurrency = 1
    opened = open_run(Loaded(config, {}, tmp_path))
    yield opened
    opened.store.close()


async def checked(
    run: Run, monkeypatch: pytest.MonkeyPatch, answer: Answer, count: int = 1, unbuilt: tuple[str, ...] = ()
) -> list[BaselineResult]:
    async def verify(candidate: Oracle | Nothing, task: Task, workshop: object) -> Verdict:
        await asyncio.sleep(0)  # as any real one gives way
        return answer(task, isinstance(candidate, Oracle))

    monkeypatch.setattr(baselines, "verify_candidate", verify)
    tasks = list(run.tasks.values())[:count]
    return await check_tasks(cast(Workshop, Bench(run, unbuilt)), tasks, lambda result: None)


def sound(task: Task, gold: bool) -> Verdict:
    return Verdict("passed", 1.0) if gold else Verdict("failed", 0.0)


async def test_a_fault_of_the_infrastructure_is_tried_again_and_is_no_task_s(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [SandboxError("podman did not answer"), Verdict("error", None, {"fault": "infra", "reason": "lost"})]

    def answer(task: Task, gold: bool) -> Verdict:
        if gold and faults:
            fault = faults.pop()
            if isinstance(fault, Verdict):
                return fault
            raise fault
        return sound(task, gold)

    (result,) = await checked(run, monkeypatch, answer)
    assert result == BaselineResult(result.task, True, [("failed", 0.0)] * 2, [("passed", 1.0)] * 2)
    assert run.store.value("SELECT count(*) FROM baselines WHERE outcome = 'error'") == 2


async def test_what_infrastructure_breaks_to_the_end_is_not_checked(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = next(iter(run.tasks))

    def answer(task: Task, gold: bool) -> Verdict:
        if task.id == first and gold:
            raise SandboxError("podman did not\nanswer")
        return sound(task, gold)

    lost, good = await checked(run, monkeypatch, answer, 2)
    assert lost.infra and not lost.good and good.good
    assert lost.line() == f"{first}: not checked: sandbox: podman did not answer"


async def test_one_fault_after_another_ends_the_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(task: Task, gold: bool) -> Verdict:
        raise SandboxError("no space left on device")

    with pytest.raises(VerifierError, match=f"{INFRA_STREAK} verifications in a row") as raised:
        await checked(run, monkeypatch, answer, 8)
    assert "the disk is full" in raised.value.hint
    assert run.store.value("SELECT count(*) FROM baselines") == INFRA_STREAK


async def test_an_image_that_does_not_build_is_the_task_s_fault_and_says_why(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = next(iter(run.tasks))
    bad, good = await checked(run, monkeypatch, sound, 2, unbuilt=(first,))
    assert good.good and not bad.good and not bad.infra
    assert bad.line().endswith(f"solution: error, error (image: the image of {first} does not build: no such package)")


async def test_a_solution_that_lies_in_the_image_is_told_beside_a_result_that_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(task: Task, gold: bool) -> Verdict:
        return Verdict("passed", 1.0, {"made": {"/app/x.py": "ab"}}) if gold else sound(task, gold)

    (result,) = await checked(run, monkeypatch, answer)
    assert result.good and result.copies == ["/opt/late is /app/x.py"]
    assert result.line().endswith("solution: passed, passed (/opt/late is /app/x.py)")
