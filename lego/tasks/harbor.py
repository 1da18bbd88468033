"""Harbor task folders; what a folder asks for and cannot be given is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lego.errors import TaskError
from lego.tasks import harbor_parts as parts
from lego.tasks import harbor_toml, harbor_verifier, overlay
from lego.tasks.harbor_files import read_tree
from lego.tasks.harbor_steps import with_steps
from lego.tasks.harbor_toml import LegoMetadata, TaskToml
from lego.tasks.harbor_words import in_words
from lego.tasks.reading import guarded, json_of, toml_of
from lego.tasks.task import DEFAULT_PROTECTED, Artifact, DemoStep, Environment, Grading, Separate, Task, Tree, exact


class _Names(BaseModel):
    """tests/names.json of a task whose grader is pytest-ids."""

    model_config = ConfigDict(strict=True)
    fail_to_pass: list[Annotated[str, Field(pattern="::")]] = []
    pass_to_pass: list[Annotated[str, Field(pattern="::")]] = []


def find(folder: Path) -> list[Path]:
    """The task folders at or below `folder`, sorted: those that hold a task.toml. Raises TaskError for none."""
    if not folder.is_dir():
        raise TaskError(f"no such folder of tasks: {folder}", fault="user")
    if (folder / "task.toml").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.rglob("task.toml"))
    strays = sorted(one for one in folder.iterdir() if (one / "instruction.md").is_file() and one not in found)
    if not found and not strays:
        raise TaskError(f"no task.toml in or under {folder}", fault="user")
    return sorted(found + strays)


def load(folder: Path, *, sealed: bool = False, host_env: Mapping[str, str] | None = None) -> Task:
    """Read one task folder; its id is the folder's name.

    sealed: run a task that explicitly asks for network without it, instead of refusing it.
    host_env: host variables that `${VAR}` in the file may take; others fall to their default or are refused.
    Raises TaskError, naming the folder and everything that is wrong with it.
    """
    with guarded(folder):
        return _load(folder, sealed, host_env or {})


def _load(folder: Path, sealed: bool, host_env: Mapping[str, str]) -> Task:
    name = folder.resolve().name
    if not name.isprintable():
        raise TaskError(f"{folder}: a task's id is its folder's name, and this is no plain text: rename the folder")
    toml = _read_toml(folder)
    wishes = toml.network_wishes()
    refused = toml.unsupported() + _unsupported_files(folder, toml) + ([] if sealed else wishes)
    if refused:
        only_network = not sealed and set(refused) == set(wishes)
        hint = "set options: {network: sealed} on the source to run it without network" if only_network else ""
        raise TaskError(f"{folder}: not supported: {'; '.join(refused)}", hint=hint)
    lego = _lego_metadata(folder, toml)
    grading = _grading(folder, lego)
    apart = [harbor_verifier.is_separate(toml, step) for step in toml.steps or (None,)]
    listed = [*toml.artifacts, *(one for step in toml.steps or () for one in step.artifacts)]
    carried = harbor_verifier.artifacts(folder, listed, separate=any(apart))
    environment = _environment(folder, toml, lego, carried, host_env, apart)
    task = Task(
        id=name,
        digest="",
        instruction="",
        environment=environment,
        tests={},
        agent_timeout=toml.agent.timeout_sec,
        agent_user=parts.user(toml.agent.user),
        verifier_timeout=toml.verifier.timeout_sec,
        verifier_env=parts.variables(folder, "verifier.env", toml.verifier.env, host_env),
        verifier_user=parts.user(toml.verifier.user),
        solution_env=parts.variables(folder, "solution.env", toml.solution.env, host_env),
        protected=_protected(lego, all(apart), grading),
        metadata=_notes(folder, toml, wishes),
        where=str(folder),
        grading=grading,
        collect=harbor_verifier.collect(toml.verifier.collect),
    )
    if toml.steps:
        task = with_steps(task, folder, toml, lego, host_env)
    else:
        task = _single(task, folder, toml, lego, harbor_verifier.separate(folder, toml, environment, carried, host_env))
    return replace(task, digest=task.content_digest())


def _single(task: Task, folder: Path, toml: TaskToml, lego: LegoMetadata, separate: Separate | None) -> Task:
    """With what a task of one step has of its own."""
    tests = _tests(folder, lego, separate)
    solution = read_tree(folder / "solution", ignore_rules=True)
    if solution and "solve.sh" not in solution:
        raise TaskError(f"{folder}: solution/ has no solve.sh")
    return replace(
        task,
        instruction=parts.instruction(folder / "instruction.md"),
        tests=tests,
        solution=solution,
        demonstration=_demonstration(solution, toml),
        separate=separate,
        installs=harbor_verifier.installs_of(folder, lego, tests, separate),
    )


def _read_toml(folder: Path) -> TaskToml:
    path = folder / "task.toml"
    data = toml_of(parts.text(path), path)
    try:
        toml = TaskToml.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{path}: {in_words(error)}") from error
    if toml.schema_version.split(".")[0] != "1":
        raise TaskError(f"{path}: schema_version {toml.schema_version!r} is not known; lego reads 1.x")
    return toml


def _unsupported_files(folder: Path, toml: TaskToml) -> list[str]:
    names = {
        "trajectory.json (what an agent said and did before)": folder / "trajectory.json",
        "tests/docker-compose.yaml": folder / "tests" / "docker-compose.yaml",
    }
    others = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")
    names |= {f"environment/{name}": folder / "environment" / name for name in others}
    for step in toml.steps or ():
        name = f"steps/{step.name}/tests/docker-compose.yaml"
        names[name] = folder / name
    if not toml.steps:
        names["steps/ (without [[steps]] in task.toml)"] = folder / "steps"
    return [name for name, path in names.items() if path.exists()]


def _lego_metadata(folder: Path, toml: TaskToml) -> LegoMetadata:
    try:
        lego = LegoMetadata.model_validate(toml.metadata.get("lego", {}))
    except ValidationError as error:
        raise TaskError(f"{folder / 'task.toml'}: metadata.lego: {in_words(error)}") from error
    for root in lego.roots:
        if not root.startswith("/") or ".." in root.split("/"):
            raise TaskError(f"{folder / 'task.toml'}: metadata.lego.roots: {root!r} is not an absolute path")
    return lego


def _protected(lego: LegoMetadata, separate: bool, grading: Grading) -> tuple[str, ...]:
    """The files of named tests are, whatever a task says of the rest. What is carried to a separate verifier is no part
    of the system that its tests run in."""
    named = tuple(map(exact, grading.test_files))
    if lego.protected is not None:
        return (*lego.protected, *named)
    return () if separate else (*DEFAULT_PROTECTED, *named)


def _environment(
    folder: Path,
    toml: TaskToml,
    lego: LegoMetadata,
    carried: Sequence[Artifact],
    host_env: Mapping[str, str],
    apart: Sequence[bool],
) -> Environment:
    """`apart`: whether each step's verifier is a separate one."""
    env = toml.environment
    context: Tree = read_tree(folder / "environment")
    if "Dockerfile" not in context and not env.docker_image:
        raise TaskError(f"{folder}: environment/Dockerfile is missing, and task.toml names no docker_image")
    workdir = env.workdir or ""
    roots = list(lego.roots)
    if carried and (any(apart) or not roots):
        roots += [] if roots or all(apart) else [workdir or parts.dockerfile_workdir(context)]
        roots += [one.source for one in carried if not one.source.startswith("/logs/") or _published(one.source)]
    workspace: Tree = {}
    if lego.stage:
        try:
            context, workspace = overlay.split(context, lego.stage, lego.over, workdir)
        except ValueError as error:
            raise TaskError(f"{folder / 'task.toml'}: metadata.lego: {error}") from error
    return Environment(
        context=context,
        image=env.docker_image or "",
        workspace=workspace,
        workdir=workdir,
        roots=tuple(dict.fromkeys(roots)),
        env=parts.variables(folder, "environment.env", env.env, host_env),
        cpus=env.cpus,
        memory_mb=env.memory_mb,
        storage_mb=env.storage_mb,
        build_timeout=env.build_timeout_sec,
        health=parts.health(env.healthcheck),
    )


def _published(source: str) -> bool:
    return source == harbor_verifier.PUBLISHED or source.startswith(f"{harbor_verifier.PUBLISHED}/")


def _tests(folder: Path, lego: LegoMetadata, separate: Separate | None) -> Tree:
    tests = read_tree(folder / "tests", ignore_rules=True)
    if separate is not None and lego.grader == "pytest-ids":
        raise TaskError(f"{folder}: grader pytest-ids needs the agent's own environment, not a separate verifier")
    if separate is not None and separate.bundled:
        return tests
    if "test.sh" not in tests and lego.grader != "pytest-ids":
        raise TaskError(f"{folder}: tests/test.sh is missing")
    return tests


def _grading(folder: Path, lego: LegoMetadata) -> Grading:
    if lego.grader != "pytest-ids":
        return Grading(lego.grader)
    path = folder / "tests" / "names.json"
    try:
        names = _Names.model_validate(json_of(parts.text(path), path))
    except ValidationError as error:
        raise TaskError(f"{path}: not lists of tests as FILE::NAME: {in_words(error)}") from error
    if not names.fail_to_pass and not names.pass_to_pass:
        raise TaskError(f"{path}: names no tests: fail_to_pass and pass_to_pass are empty")
    return Grading(lego.grader, tuple(names.fail_to_pass), tuple(names.pass_to_pass))


def _demonstration(solution: Tree, toml: TaskToml) -> tuple[DemoStep, ...]:
    """The solution said as a command, where it is one script that stands alone."""
    if set(solution) != {"solve.sh"} or toml.solution.env:
        return ()
    script = solution["solve.sh"].data.decode(errors="replace")
    if re.search(r"/solution|\$0|\$\{?BASH_SOURCE", script):
        return ()
    body = re.sub(r"\A#!.*\n", "", script).strip()
    return (DemoStep("ls -A"), DemoStep(body))


def _notes(folder: Path, toml: TaskToml, wishes: Iterable[str]) -> dict[str, str]:
    notes = {key: str(value) for key, value in toml.metadata.items() if isinstance(value, str | int | float)}
    if package := toml.task:
        authors = [f"{one.name} <{one.email}>" if one.email else one.name for one in package.authors]
        said = {
            "name": package.name,
            "version": package.version,
            "description": package.description,
            "authors": ", ".join(authors),
            "keywords": ", ".join(package.keywords),
        }
        notes |= {key: text for key, text in said.items() if text}
    if toml.source:
        notes["source"] = toml.source
    warnings = [f"run without network although it asks for {wish}" for wish in wishes]
    warnings += [f"unknown key {key} ignored" for key in toml.unknown_keys()]
    apart = [harbor_verifier.is_separate(toml, step) for step in toml.steps or (None,)]
    listed = [
        one
        for one in [*toml.artifacts, *(each for step in toml.steps or () for each in step.artifacts)]
        if isinstance(one, harbor_toml.Artifact)
    ]
    if any(one.destination for one in listed):
        warnings.append("artifacts: destination means nothing here: nothing is kept in a folder of the host's")
    if any(one.exclude for one in listed) and not all(apart):
        warnings.append("artifacts: exclude means nothing without a separate verifier: changes there are submitted")
    if (folder / "tests" / "Dockerfile").is_file() and not any(apart):
        warnings.append("tests/Dockerfile means nothing here: verifier.environment_mode is not separate")
    if warnings:
        notes["warnings"] = "; ".join(warnings)
    return notes
