"""How a container that is started several times is told what to do next: a folder of the host's, read-only inside, so
that nothing which ran before can have changed what comes."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

INSIDE = "/run/lego-next"
COMMAND = ["/bin/sh", f"{INSIDE}/go"]


def say(folder: Path, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> None:
    """The next start's command, its variables and its input."""
    given = f" < {INSIDE}/stdin" if stdin else ""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    lines.append(f"exec {shlex.join(argv)}{given}\n")
    for name, data in (("stdin", stdin), ("go", "\n".join(lines).encode(errors="surrogateescape"))):
        (folder / name).write_bytes(data)
        (folder / name).chmod(0o644)
