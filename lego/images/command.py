"""One command of a build: its output in a log, its processes gone with it, and whether the network was to blame."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from lego.errors import ImageError
from lego.plain import one_line
from lego.processes import descendants

_PATIENCE = 5.0
_TAIL = 16 << 10
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

# As resolvers, apt, pip, npm, git, curl and podman word it. Said near the end of a failed command's output it means
# that the same command may well pass a moment later.
_HICCUP = re.compile(
    rb"temporary failure (?:resolving|in name resolution)|could(?: not|n't) resolve host|EAI_AGAIN"
    rb"|connection (?:timed out|reset|refused)|ETIMEDOUT|ECONNRESET|ECONNREFUSED|network is unreachable|i/o timeout"
    rb"|tls handshake timeout|read timed out|readtimeouterror|newconnectionerror|hash sum mismatch"
    rb"|too ?many ?requests|(?:HTTP[ /\d.]*|\berror:? |status(?: code)?:? )(?:429|50[234])\b|bad gateway"
    rb"|service unavailable|gateway time-?out|remote end hung up unexpectedly|unexpected eof",
    re.IGNORECASE,
)


async def run_logged(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
    """Run a command with its output in the log; its whole process group ends with this coroutine.

    Raises ImageError with the last line that it wrote.
    """
    log.write(f"$ {' '.join(argv)}\n".encode())
    log.flush()
    began = log.tell()
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        code = await process.wait()
    except BaseException:
        await _end(process)
        raise
    if code != 0:
        raise ImageError(last_line(Path(log.name), began) or f"{argv[0]} ended with exit code {code}")


def network_failed(log: Path, began: int) -> bool:
    """Whether what stands in the log from byte `began` on ends in the words of a network that fails for a moment."""
    return _HICCUP.search(_tail(log, began)) is not None


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and all it started: what a build step runs in its container is in no process group of ours, and
    outlives a podman that is killed."""
    started = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _PATIENCE)
    for pid in (process.pid, *started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await process.wait()


def last_line(log: Path, began: int = 0) -> str:
    """The last line that says something after byte `began` of a log, safe to show; "" where there is none."""
    lines = _COLOURS.sub("", _tail(log, began).decode(errors="replace")).splitlines()
    return next(filter(None, map(one_line, reversed(lines))), "")[:500]


def _tail(log: Path, began: int) -> bytes:
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(began, size - _TAIL))
        return file.read()
