"""Harbor task folders: the single-step core of the format; whatever else a folder asks for is refused by name."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from lego.errors import TaskError
from lego.tasks import harbor_toml, overlay
from lego.tasks.harbor_files import read_tree
from lego.tasks.harbor_toml import Artifact, LegoMetadata, TaskToml, in_words
from lego.tasks.task import DEFAULT_PROTECTED, DemoStep, Environment, Grading, Healthcheck, Task, Tree

_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


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
    toml = _read_toml(folder)
    wishes = toml.network_wishes()
    refused = toml.unsupported() + _unsupported_files(folder) + ([] if sealed else wishes)
    if refused:
        only_network = not sealed and set(refused) == set(wishes)
        hint = "set options: {network: sealed} on the source to run it without network" if only_network else ""
        raise TaskError(f"{folder}: not supported: {'; '.join(refused)}", hint=hint)
    lego = _lego_metadata(folder, toml)
    solution = read_tree(folder / "solution", ignore_rules=True)
    if solution and "solve.sh" not in solution:
        raise TaskError(f"{folder}: solution/ has no solve.sh")
    task = Task(
        id=folder.resolve().name,
        digest="",
        instruction=_without_canary(_text(folder / "instruction.md")),
        environment=_environment(folder, toml, lego, host_env or {}),
        tests=_tests(folder, lego),
        solution=solution,
        agent_timeout=toml.agent.timeout_sec,
        agent_user=_user(toml.agent.user),
        verifier_timeout=toml.verifier.timeout_sec,
        verifier_env=_variables(folder, "verifier.env", toml.verifier.env, host_env or {}),
        verifier_user=_user(toml.verifier.user),
        solution_env=_variables(folder, "solution.env", toml.solution.env, host_env or {}),
        protected=DEFAULT_PROTECTED if lego.protected is None else tuple(lego.protected),
        demonstration=_demonstration(solution, toml),
        metadata=_notes(toml, wishes),
        where=str(folder),
        grading=_grading(folder, lego),
    )
    return replace(task, digest=task.content_digest())


def _read_toml(folder: Path) -> TaskToml:
    path = folder / "task.toml"
    try:
        data = tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{path}: not valid TOML: {error}") from error
    try:
        toml = TaskToml.model_validate(data)
    except ValidationError as error:
        raise TaskError(f"{path}: {in_words(error)}") from error
    if toml.schema_version.split(".")[0] != "1":
        raise TaskError(f"{path}: schema_version {toml.schema_version!r} is not known; lego reads 1.x")
    return toml


def _unsupported_files(folder: Path) -> list[str]:
    names = {
        "steps/ (a multi-step task)": folder / "steps",
        "trajectory.json (what an agent said and did before)": folder / "trajectory.json",
        "tests/Dockerfile (a separate verifier image)": folder / "tests" / "Dockerfile",
        "tests/docker-compose.yaml": folder / "tests" / "docker-compose.yaml",
    }
    others = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")
    names |= {f"environment/{name}": folder / "environment" / name for name in others}
    return [name for name, path in names.items() if path.exists()]


def _without_canary(text: str) -> str:
    """An instruction without the leading lines by which benchmarks find themselves in training data; no agent is to
    see them."""
    lines = text.split("\n")
    begin = 0
    while begin < len(lines) and _CANARY.fullmatch(lines[begin].strip()):
        begin += 1
    if not begin:
        return text
    while begin < len(lines) and not lines[begin].strip():
        begin += 1
    return "\n".join(lines[begin:])


def _lego_metadata(folder: Path, toml: TaskToml) -> LegoMetadata:
    try:
        lego = LegoMetadata.model_validate(toml.metadata.get("lego", {}))
    except ValidationError as error:
        raise TaskError(f"{folder / 'task.toml'}: metadata.lego: {in_words(error)}") from error
    for root in lego.roots:
        if not root.startswith("/") or ".." in root.split("/"):
            raise TaskError(f"{folder / 'task.toml'}: metadata.lego.roots: {root!r} is not an absolute path")
    return lego


def _environment(folder: Path, toml: TaskToml, lego: LegoMetadata, host_env: Mapping[str, str]) -> Environment:
    env = toml.environment
    context: Tree = read_tree(folder / "environment")
    if "Dockerfile" not in context and not env.docker_image:
        raise TaskError(f"{folder}: environment/Dockerfile is missing, and task.toml names no docker_image")
    workdir = env.workdir or ""
    artifacts = [_artifact_root(folder, one) for one in toml.artifacts]
    roots = lego.roots or [one for one in artifacts if not one.startswith("/logs/")]
    if roots and not lego.roots:
        agent_dir = workdir or _dockerfile_workdir(context)
        roots = [agent_dir, *roots] if agent_dir else roots
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
        env=_variables(folder, "environment.env", env.env, host_env),
        cpus=env.cpus,
        memory_mb=env.memory_mb,
        storage_mb=env.storage_mb,
        build_timeout=env.build_timeout_sec,
        health=_health(env.healthcheck),
    )


def _health(check: harbor_toml.Healthcheck | None) -> Healthcheck | None:
    if check is None:
        return None
    return Healthcheck(
        command=check.command,
        interval=check.interval_sec,
        timeout=check.timeout_sec,
        start_period=check.start_period_sec,
        start_interval=check.start_interval_sec,
        retries=check.retries,
    )


def _artifact_root(folder: Path, artifact: str | Artifact) -> str:
    source = artifact if isinstance(artifact, str) else artifact.source
    if not source.startswith("/"):
        raise TaskError(f"{folder / 'task.toml'}: artifacts: {source!r} is not an absolute path")
    return source.rstrip("/") or "/"


def _dockerfile_workdir(context: Tree) -> str:
    """The WORKDIR in force at the end of the Dockerfile's last stage, or "" where it cannot be read off."""
    workdir = ""
    dockerfile = context.get("Dockerfile")
    for line in (dockerfile.data if dockerfile else b"").decode(errors="replace").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].upper() == "FROM":
            workdir = ""
        elif len(words) == 2 and words[0].upper() == "WORKDIR" and "$" not in words[1]:
            workdir = words[1] if words[1].startswith("/") else f"{workdir}/{words[1]}"
    return workdir


def _tests(folder: Path, lego: LegoMetadata) -> Tree:
    tests = read_tree(folder / "tests", ignore_rules=True)
    if "test.sh" not in tests and lego.grader != "pytest-ids":
        raise TaskError(f"{folder}: tests/test.sh is missing")
    return tests


def _grading(folder: Path, lego: LegoMetadata) -> Grading:
    if lego.grader != "pytest-ids":
        return Grading(lego.grader)
    path = folder / "tests" / "names.json"
    try:
        body = json.loads(_text(path))
        names = [tuple(body.get(key, ())) for key in ("fail_to_pass", "pass_to_pass")]
    except (ValueError, AttributeError, TypeError) as error:
        raise TaskError(f"{path}: not an object with fail_to_pass and pass_to_pass: {error}") from error
    if not any(names) or not all(isinstance(name, str) and "::" in name for part in names for name in part):
        raise TaskError(f"{path}: names no tests, or not as FILE::NAME")
    return Grading(lego.grader, fail_to_pass=names[0], pass_to_pass=names[1])


def _demonstration(solution: Tree, toml: TaskToml) -> tuple[DemoStep, ...]:
    """The solution said as a command, where it is one script that stands alone."""
    if set(solution) != {"solve.sh"} or toml.solution.env:
        return ()
    script = solution["solve.sh"].data.decode(errors="replace")
    if re.search(r"/solution|\$0|\$\{?BASH_SOURCE", script):
        return ()
    body = re.sub(r"\A#!.*\n", "", script).strip()
    return (DemoStep("ls -A"), DemoStep(body))


def _notes(toml: TaskToml, wishes: Iterable[str]) -> dict[str, str]:
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
    for key in ("destination", "exclude"):
        if any(isinstance(one, Artifact) and getattr(one, key) for one in toml.artifacts):
            warnings.append(f"artifacts: {key} means nothing here: an artifact's changes are part of the submission")
    if warnings:
        notes["warnings"] = "; ".join(warnings)
    return notes


def _variables(folder: Path, where: str, env: Mapping[str, str], host_env: Mapping[str, str]) -> dict[str, str]:
    """`${VAR}` and `${VAR:-default}` filled in, from the variables the source's options let through alone: a task
    from elsewhere must not be able to read this host's secrets into its sandbox."""

    def fill(match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        if name in host_env:
            return host_env[name]
        if default is None:
            raise TaskError(
                f"{folder / 'task.toml'}: {where} needs the host variable {name}",
                hint=f"set it and let it through: options: {{host_env: [{name}]}} on the source",
            )
        return default

    return {key: _VARIABLE.sub(fill, value) for key, value in env.items()}


def _user(user: str | int | None) -> str | None:
    return None if user is None else str(user)


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    if not text.strip():
        raise TaskError(f"{path}: is empty")
    return text
