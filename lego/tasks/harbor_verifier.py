"""A Harbor task's way from the agent's container to its verifier: artifacts, collect hooks, a verifier of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lego.errors import TaskError
from lego.tasks import harbor_parts as parts
from lego.tasks import harbor_toml
from lego.tasks.harbor_files import read_tree
from lego.tasks.task import Artifact, Collect, Environment, Separate

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
) -> Separate | None:
    """The verifier's own environment; None where it is the agent's. An image of its own (named, or tests/Dockerfile)
    holds the tests already; otherwise it is another container of the agent's image."""
    verifier = toml.verifier
    if not verifier.separate:
        return None
    own = verifier.environment
    name = "environment" if own is None else "verifier.environment"
    asked = own or toml.environment
    context, image, workspace, bundled = agents.context, agents.image, agents.workspace, False
    if own is not None and own.docker_image:
        context, image, workspace, bundled = {}, own.docker_image, {}, True
    elif (folder / "tests" / "Dockerfile").is_file():
        context, image, workspace, bundled = read_tree(folder / "tests"), "", {}, True
    environment = Environment(
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
    return Separate(environment, bundled, carried)
