"""A Harbor task's way from the agent's container to its verifier: artifacts, collect hooks, a verifier of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lego.errors import TaskError
from lego.tasks import harbor_parts as parts
from lego.tasks import harbor_toml, installs
from lego.tasks.harbor_files import read_tree
from lego.tasks.installs import Installs
from lego.tasks.task import Artifact, Collect, Environment, Separate, Tree

PUBLISHED = "/logs/artifacts"
"""Where an agent may leave what a separate verifier gets without being told of it."""
_NO_FILES = ("/proc", "/sys", "/dev", "/run")


def artifacts(folder: Path, listed: Sequence[str | harbor_toml.Artifact], *, separate: bool) -> tuple[Artifact, ...]:
    """What is taken out of the agent's container; for a separate verifier what was published comes with it."""
    found = [_artifact(folder, one, separate=separate) for one in listed]
    if separate and PUBLISHED not in (one.source for one in found):
        found.insert(0, Artifact(PUBLISHED))
    return tuple(dict.fromkeys(found))


def _artifact(folder: Path, one: str | harbor_toml.Artifact, *, separate: bool) -> Artifact:
    source = one if isinstance(one, str) else one.source
    where = folder / "task.toml"
    if not source.startswith("/"):
        raise TaskError(f"{where}: artifacts: {source!r} is not an absolute path")
    place = "/" + "/".join(part for part in source.split("/") if part not in ("", "."))
    if separate and place == "/":
        raise TaskError(f"{where}: artifacts: {source!r} is a whole system, which no other can be given")
    if any(place == name or place.startswith(f"{name}/") for name in _NO_FILES):
        raise TaskError(f"{where}: artifacts: {source!r} is no place for files that stay")
    return Artifact(place, () if isinstance(one, str) else tuple(one.exclude))


def collect(hooks: Sequence[harbor_toml.Collect]) -> tuple[Collect, ...]:
    return tuple(Collect(one.command, one.timeout_sec) for one in hooks)


def separate(
    folder: Path,
    toml: harbor_toml.TaskToml,
    agents: Environment,
    carried: tuple[Artifact, ...],
    host_env: Mapping[str, str],
    step: harbor_toml.Step | None = None,
) -> Separate | None:
    """The verifier's own environment; None where it is the agent's. An image of its own (named, or tests/Dockerfile, a
    step's before the task's) holds the tests already; otherwise it is another container of the agent's image."""
    if not is_separate(toml, step):
        return None
    places = [(toml.verifier.environment, folder / "tests")]
    if step is not None:
        places.insert(0, (step.verifier.environment, folder / "steps" / step.name / "tests"))
    own = next((environment for environment, _ in places if environment is not None), None)
    name = "environment" if own is None else "verifier.environment"
    asked = own or toml.environment
    context, image, workspace, bundled = agents.context, agents.image, agents.workspace, False
    for environment, tests in places:
        if environment is not None and environment.docker_image:
            context, image, workspace, bundled = {}, environment.docker_image, {}, True
        elif (tests / "Dockerfile").is_file():
            context, image, workspace, bundled = read_tree(tests), "", {}, True
        if bundled:
            break
    made = Environment(
        context=context,
        image=image,
        workspace=workspace,
        workdir=asked.workdir or "",
        env=parts.variables(folder, f"{name}.env", asked.env, host_env),
        cpus=asked.cpus,
        memory_mb=asked.memory_mb,
        storage_mb=asked.storage_mb,
        build_timeout=asked.build_timeout_sec,
        health=parts.health(asked.healthcheck),
    )
    return Separate(made, bundled, carried)


def is_separate(toml: harbor_toml.TaskToml, step: harbor_toml.Step | None = None) -> bool:
    """A step says it for itself, or is as its task."""
    own = step.verifier if step is not None else toml.verifier
    if own.environment_mode is None and own.environment is None:
        own = toml.verifier
    return own.separate


def installs_of(folder: Path, lego: harbor_toml.LegoMetadata, tests: Tree, separate: Separate | None) -> Installs:
    """What the tests would install; an image that brings its tests brings that as well."""
    if not lego.freeze or (separate is not None and separate.bundled):
        return Installs()
    found = installs.scan(tests)
    if found.problems:
        raise TaskError(
            f"{folder}: tests need a network for what cannot be frozen into an image: {'; '.join(found.problems)}",
            hint="put it into environment/Dockerfile or tests/Dockerfile; or run the tests as they stand: "
            "[metadata.lego] freeze = false",
        )
    return found
