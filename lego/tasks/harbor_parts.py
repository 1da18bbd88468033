"""Parts of a Harbor task folder that occur in more than one place of it: texts, variables, health checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from lego.errors import TaskError
from lego.tasks import harbor_toml
from lego.tasks.task import Healthcheck, Tree

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.IGNORECASE)


def text(path: Path) -> str:
    """A file's text. Raises TaskError where it is missing, empty or cannot be read."""
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise TaskError(f"{path.parent}: {path.name} is missing") from None
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    if not content.strip():
        raise TaskError(f"{path}: is empty")
    return content


def instruction(path: Path) -> str:
    """An instruction without the leading lines by which benchmarks find themselves in training data; no agent is to
    see them."""
    whole = text(path)
    lines = whole.split("\n")
    begin = 0
    while begin < len(lines) and _CANARY.fullmatch(lines[begin].strip()):
        begin += 1
    if not begin:
        return whole
    while begin < len(lines) and not lines[begin].strip():
        begin += 1
    return "\n".join(lines[begin:])


def variables(folder: Path, where: str, env: Mapping[str, str], host_env: Mapping[str, str]) -> dict[str, str]:
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


def user(name: str | int | None) -> str | None:
    return None if name is None else str(name)


def health(check: harbor_toml.Healthcheck | None) -> Healthcheck | None:
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


def dockerfile_workdir(context: Tree) -> str:
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
