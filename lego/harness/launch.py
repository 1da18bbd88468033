"""From a spec and one trial's values to the command that runs in the sandbox.

The runtime image is mounted read-only at /opt/harness and brings its own loader, libraries and interpreter: the task's
image needs none of them, and nothing of the harness is visible to the repository's own Python or the other way round.
No environment variable carries that isolation, so the commands the agent runs do not inherit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from lego.errors import HarnessError
from lego.harness.spec import PLACEHOLDER, HarnessSpec
from lego.tasks.task import File, Tree

MOUNT = "/opt/harness"
SOCKET = "/run/lego/proxy.sock"
PORT = 4141
MAX_ARGUMENT = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN less the terminating zero: the longest single argument a process can be given."""

_LOADER = (f"{MOUNT}/lego/ld.so", "--library-path", f"{MOUNT}/lego/lib")
_SYSTEM_PYTHON = (*_LOADER, f"{MOUNT}/lego/python", "-I", "-S")
_VENV_PYTHON = (*_LOADER, f"{MOUNT}/venv/bin/python", "-I")


@dataclass(frozen=True)
class LaunchValues:
    """What one trial tells its harness. `workdir` is where the harness starts."""

    instruction: str
    token: str
    model: str
    max_turns: int
    max_output_tokens: int
    context: int
    temperature: float
    workdir: str


@dataclass(frozen=True)
class Launch:
    """`files` are absolute paths to lay down before the start; `image_mount` is (tag, mount point)."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    image_mount: tuple[str, str]
    files: Tree = field(default_factory=dict)
    stdin: bytes | None = None


def render(spec: HarnessSpec, values: LaunchValues, runtime_tag: str) -> Launch:
    """The launch of one trial. Raises HarnessError where the instruction does not fit the harness's command line."""
    names = {
        "instruction": values.instruction,
        "proxy": f"http://127.0.0.1:{PORT}",
        "socket": SOCKET,
        "token": values.token,
        "model": values.model,
        "max_turns": str(values.max_turns),
        "max_output_tokens": str(values.max_output_tokens),
        "context": str(values.context),
        "temperature": str(values.temperature),
        "workdir": values.workdir,
        "harness": MOUNT,
    }

    def fill(text: str) -> str:
        return PLACEHOLDER.sub(lambda match: names[match[1]], text)

    command, *rest = (fill(part) for part in spec.run.argv)
    argv = (*_program(spec, command), *rest)
    if spec.needs_port:
        argv = (*_SYSTEM_PYTHON, f"{MOUNT}/lego/forward.py", str(PORT), SOCKET, *argv)
    for part in argv:
        if len(part.encode()) > MAX_ARGUMENT:
            raise HarnessError(
                f"{spec.name} takes the instruction as an argument, and {len(part.encode())} bytes are over the "
                f"system's limit of {MAX_ARGUMENT}",
                hint="shorten the task's instruction.md, or use a harness that reads it from stdin",
                fault="task",
            )
    return Launch(
        argv=argv,
        env={key: fill(text) for key, text in spec.run.env.items()},
        image_mount=(runtime_tag, MOUNT),
        files={
            path: File(fill(text).encode(), 0o755 if text.startswith("#!") else 0o644)
            for path, text in spec.run.files.items()
        },
        stdin=values.instruction.encode() if spec.run.stdin == "instruction" else None,
    )


def _program(spec: HarnessSpec, command: str) -> tuple[str, ...]:
    if PurePosixPath(command).is_absolute():
        return (command,)
    if spec.install.npm and command != "python":
        # It names our loader itself (lego.images.recipes.OWN_LOADER).
        return (f"{MOUNT}/npm/bin/{command}",)
    python = _VENV_PYTHON if spec.install.pip else _SYSTEM_PYTHON
    return python if command == "python" else (*python, f"{MOUNT}/venv/bin/{command}")
