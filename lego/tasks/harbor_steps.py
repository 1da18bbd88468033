"""Harbor tasks of several steps: each step as a task of its own, over what the steps before it laid in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from lego.errors import TaskError
from lego.tasks import harbor_parts as parts
from lego.tasks import harbor_toml, harbor_verifier
from lego.tasks.harbor_files import read_tree
from lego.tasks.task import Environment, File, Stage, Step, Task

_SETUP = "setup.sh"


def with_steps(
    task: Task, folder: Path, toml: harbor_toml.TaskToml, lego: harbor_toml.LegoMetadata, host_env: Mapping[str, str]
) -> Task:
    """`task` (all that its steps have in common) with the steps of its folder. Raises TaskError."""
    if lego.grader == "pytest-ids":
        raise TaskError(f"{folder}: grader pytest-ids knows no steps")
    _refuse_strays(folder, toml)
    steps: list[Step] = []
    laid: dict[str, File] = {}
    stages: tuple[Stage, ...] = ()
    for step in toml.steps or ():
        stage = _stage(task, folder, toml, step)
        stages += (stage,)
        laid |= stage.files
        environment = replace(task.environment, workspace={**task.environment.workspace, **laid})
        one = _task(task, folder, toml, lego, host_env, step, environment)
        one = replace(one, stages=stages)
        steps.append(Step(step.name, replace(one, digest=one.content_digest()), _least(step)))
    # What is hidden is looked for in images, and a task without a solution is known by that.
    solved = all(stage.solution for stage in stages)
    return replace(
        task,
        instruction="\n\n".join(step.task.instruction for step in steps),
        tests={f"{step.name}/{path}": file for step in steps for path, file in step.task.tests.items()},
        solution={f"{step.name}/{path}": file for step in steps for path, file in step.task.solution.items()}
        if solved
        else {},
        steps=tuple(steps),
        strategy=toml.multi_step_reward_strategy or "mean",
    )


def _refuse_strays(folder: Path, toml: harbor_toml.TaskToml) -> None:
    names = {step.name for step in toml.steps or ()}
    found = (
        {path.name for path in (folder / "steps").iterdir() if path.is_dir()} if (folder / "steps").is_dir() else set()
    )
    if stray := sorted(found - names):
        raise TaskError(f"{folder}: steps/{stray[0]} is no step that task.toml names")


def _stage(task: Task, folder: Path, toml: harbor_toml.TaskToml, step: harbor_toml.Step) -> Stage:
    place = folder / "steps" / step.name
    workdir = task.environment.workdir or parts.dockerfile_workdir(task.environment.context)
    files = read_tree(place / "workdir")
    if files and not workdir:
        raise TaskError(f"{folder}: steps/{step.name}/workdir needs environment.workdir, or a WORKDIR that can be read")
    solution = read_tree(place / "solution", ignore_rules=True) or read_tree(folder / "solution", ignore_rules=True)
    if solution and "solve.sh" not in solution:
        raise TaskError(f"{folder}: the solution of step {step.name} has no solve.sh")
    return Stage(
        files={f"{workdir.rstrip('/')}/{path}": file for path, file in files.items()},
        setup=f"{workdir.rstrip('/')}/{_SETUP}" if _SETUP in files else "",
        health=parts.health(step.healthcheck),
        solution=solution,
        solution_env=task.solution_env,
        agent_timeout=step.agent.timeout_sec or toml.agent.timeout_sec,
    )


def _task(
    task: Task,
    folder: Path,
    toml: harbor_toml.TaskToml,
    lego: harbor_toml.LegoMetadata,
    host_env: Mapping[str, str],
    step: harbor_toml.Step,
    environment: Environment,
) -> Task:
    listed = [*toml.artifacts, *step.artifacts]
    alone = harbor_verifier.is_separate(toml, step)
    carried = harbor_verifier.artifacts(folder, listed, separate=alone)
    separate = harbor_verifier.separate(folder, toml, environment, carried, host_env, step)
    bundled = separate is not None and separate.bundled
    places = [folder / "tests", folder / "steps" / step.name / "tests"]
    tests = {name: file for place in places for name, file in read_tree(place, ignore_rules=True).items()}
    if "test.sh" not in tests and not bundled:
        raise TaskError(f"{folder}: step {step.name} has no test.sh, nor has tests/")
    verifier = step.verifier
    env = {**toml.verifier.env, **verifier.env}
    solution = read_tree(folder / "steps" / step.name / "solution", ignore_rules=True)
    return replace(
        task,
        id=f"{task.id}/{step.name}",
        instruction=parts.instruction(folder / "steps" / step.name / "instruction.md"),
        environment=environment,
        tests=tests,
        solution=solution or read_tree(folder / "solution", ignore_rules=True),
        agent_timeout=step.agent.timeout_sec or toml.agent.timeout_sec,
        verifier_timeout=verifier.timeout_sec,
        verifier_env=parts.variables(folder, "verifier.env", env, host_env),
        verifier_user=parts.user(verifier.user if verifier.user is not None else toml.verifier.user),
        collect=harbor_verifier.collect([*toml.verifier.collect, *verifier.collect]),
        separate=separate,
        installs=harbor_verifier.installs_of(folder, lego, tests, separate),
        demonstration=(),
    )


def _least(step: harbor_toml.Step) -> dict[str, float]:
    least = step.min_reward
    return {} if least is None else dict(least) if isinstance(least, dict) else {"reward": least}
