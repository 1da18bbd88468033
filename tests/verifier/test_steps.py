"""Tasks of several steps: how their rewards are joined, and their verdicts in sandboxes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission
from lego.tasks.task import File, Healthcheck, Stage, Step, Strategy, Task
from lego.verifier.bench import Bench, Place
from lego.verifier.grade import Candidate, Nothing, Oracle, grade
from lego.verifier.steps import grade_steps, joined, one_reward, unmet
from lego.verifier.verdict import Verdict
from tests.sandbox.running import SMALL
from tests.verifier.shell_tasks import shell_task

REWARDS = st.dictionaries(st.sampled_from(["reward", "speed", "size"]), st.floats(-5, 5), min_size=1)


@given(st.lists(REWARDS, min_size=1, max_size=5))
def test_the_mean_is_harbors(rewards: list[dict[str, float]]) -> None:
    mean = joined(rewards, "mean")
    assert set(mean) == {key for one in rewards for key in one}
    for key, value in mean.items():
        assert value * len(rewards) == pytest.approx(sum(one.get(key, 0) for one in rewards))
        assert min(one.get(key, 0) for one in rewards) - 1e-9 <= value <= max(one.get(key, 0) for one in rewards) + 1e-9
    assert joined(rewards, "final") == rewards[-1]


@given(REWARDS)
def test_one_of_several_rewards(rewards: dict[str, float]) -> None:
    assert one_reward(joined([rewards], "mean")) == one_reward(rewards)
    assert min(rewards.values()) - 1e-9 <= one_reward(rewards) <= max(rewards.values()) + 1e-9


def test_the_least_reward_is_by_key_and_missing_is_less() -> None:
    step = Step("one", shell_task(), {"reward": 0.5, "speed": 1.0})
    assert unmet(step, {"reward": 0.5, "speed": 1.0}) == ""
    assert unmet(step, {"reward": 0.4, "speed": 2.0}) == "reward 0.4, at least 0.5 is asked for"
    assert unmet(step, {"reward": 0.5}).startswith("speed missing")


def stepped(strategy: Strategy = "mean", least: float | None = None, setup: str = "true") -> Task:
    """Two steps; each wants a file with its name, the second the first's as well."""
    stages: tuple[Stage, ...] = ()
    steps = []
    plain = shell_task()
    for number, name in enumerate(("one", "two")):
        solve = File(f"#!/bin/sh\ncat /app/given > {name}; ls /solution | wc -l > n\n".encode())
        files = {"/app/given": File(f"{name}\n".encode())}
        if number:
            files["/app/setup.sh"] = File(f"{setup}\ntest -e one || touch /app/alone\n".encode())
        health = Healthcheck("test -e given", interval=0.0, retries=1)
        stages += (Stage(files, "/app/setup.sh" if number else "", health, {"solve.sh": solve}),)
        test = f"[ $(cat /app/{name}) = {name} ] && [ $(cat /app/given) = {name} ] && [ ! -e /app/alone ]"
        if number:
            test += " && [ $(cat /app/one) = one ] && [ $(cat /app/n) = 1 ]"
        laid = {path: file for stage in stages for path, file in stage.files.items()}
        task = replace(
            shell_task(f"if {test}; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"),
            environment=replace(plain.environment, workspace={**plain.environment.workspace, **laid}),
            solution={"solve.sh": solve},
            stages=stages,
        )
        steps.append(Step(name, task, {} if least is None or number else {"reward": least}))
    return replace(plain, steps=tuple(steps), strategy=strategy)


async def graded(podman: Podman, image: str, task: Task, candidate: Candidate) -> Verdict:
    place = Place(image, SMALL)
    return await grade_steps(task, [Bench(podman, step.task, place, place, 60.0) for step in task.steps], candidate)


def left(*names: str) -> Submission:
    return Submission(("/app",), tuple(Entry(f"/app/{name}", "file", 0o644, f"{name}\n".encode()) for name in names))


@pytest.mark.podman
@pytest.mark.parametrize("strategy", ["mean", "final"])
async def test_the_solutions_of_all_steps_pass_and_nothing_fails(
    podman: Podman, busybox: str, strategy: Strategy
) -> None:
    task = stepped(strategy)
    verdict = await graded(podman, busybox, task, Oracle())
    assert (verdict.outcome, verdict.reward) == ("passed", 1.0), verdict
    assert [step["reward"] for step in verdict.detail["steps"]] == [1.0, 1.0]
    assert verdict.detail["changed"] == ["/app/n", "/app/one", "/app/two"]
    assert [verdict.detail[f"seen {name}"]["rc"] for name in ("one", "two")] == [0, 0]
    assert (await graded(podman, busybox, task, Nothing())).reward == 0.0


@pytest.mark.podman
async def test_each_step_is_graded_by_what_was_there_at_its_end(podman: Podman, busybox: str) -> None:
    both = replace(left("one"), earlier=(left("one"),))
    verdict = await graded(podman, busybox, stepped(), both)
    assert (verdict.outcome, verdict.reward) == ("failed", 0.5)
    assert [step["outcome"] for step in verdict.detail["steps"]] == ["passed", "failed"]
    assert (await graded(podman, busybox, stepped("final"), both)).reward == 0.0
    assert b"--- step two ---" in verdict.log


@pytest.mark.podman
async def test_breaking_off_counts_as_nothing_and_a_gate_as_left_out(podman: Podman, busybox: str) -> None:
    """One step alone was begun: because the agent came to a cap, or because it earned too little for the next."""
    alone = left("one")
    assert (await graded(podman, busybox, stepped(), alone)).reward == 0.5
    assert (await graded(podman, busybox, stepped("final"), alone)).reward == 0.0
    gated = await graded(podman, busybox, stepped(least=1.5), alone)
    assert gated.reward == 1.0 and [step["outcome"] for step in gated.detail["steps"]] == ["passed", "not begun"]


@pytest.mark.podman
async def test_a_setup_that_fails_is_the_tasks_fault(podman: Podman, busybox: str) -> None:
    verdict = await graded(podman, busybox, stepped(setup="echo no such thing; exit 3"), Oracle())
    assert (verdict.outcome, verdict.reward) == ("error", None)
    assert verdict.detail["fault"] == "task" and "setup.sh" in verdict.detail["reason"]
    assert "no such thing" in verdict.detail["reason"]


@pytest.mark.podman
async def test_a_solution_that_leaves_nothing_to_begin_in_is_the_tasks_fault(podman: Podman, busybox: str) -> None:
    two = stepped().steps[1]
    spoils = {"solve.sh": File(b"#!/bin/sh\ncd /; rm -rf /app; ln -s /app /app\n")}
    stages = (replace(two.task.stages[0], solution=spoils), two.task.stages[1])
    place = Place(busybox, SMALL)
    verdict = await grade(Bench(podman, replace(two.task, stages=stages), place, place, 60.0), Oracle())
    assert (verdict.outcome, verdict.detail["fault"]) == ("error", "task"), verdict
    assert "cannot begin" in verdict.detail["reason"]
