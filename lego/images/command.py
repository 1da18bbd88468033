"""One command of a build: its output in a log, its processes gone with it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from lego.errors import ImageError
from lego.plain import one_line
from lego.processes import descendants, kill, session

_PATIENCE = 5.0
_TAIL = 16 << 10
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_STEP = re.compile(r'^Error: building at STEP "(?:(.*)": while running runtime: (.*)|(.*?)": (.*))$')
_PODMAN = re.compile(r"^(?:STEP \d+/\d+: |--> |\$ )")
"""How podman and the log itself begin their own lines, between which stands what a step's command said."""
_SHOWN = 60


class CommandFailed(ImageError):
    """`code`: its exit code, negative for the signal that ended it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


async def run_logged(argv: Sequence[str], env: Mapping[str, str], log: IO[bytes]) -> None:
    """Run a command with its output in the log; its whole process group ends with this coroutine.

    Raises CommandFailed with the last words of what failed in it, or those that a script of ours gave as its reason.
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
    if code < 0:  # killed by somebody else: what it started does not know of it
        kill(session(process.pid))
    if code != 0:
        path = Path(log.name)
        said = _reason(path, began) or _last_words(path, began) or f"{argv[0]} ended with exit code {code}"
        raise CommandFailed(said, code)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a command and all it started: what a build step runs in its container is in no process group of ours, and
    outlives a podman that is killed."""
    started = descendants(process.pid)
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _PATIENCE)
    kill((process.pid, *started))
    await process.wait()


def last_line(log: Path, began: int = 0) -> str:
    """The last line that says something after byte `began` of a log, safe to show; "" where there is none."""
    return next(_lines_from_the_end(log, began), "")[:500]


def _last_words(log: Path, began: int) -> str:
    """The last line; where that is podman's on a step that failed, what the step's command said before, then the step,
    of which podman repeats every word."""
    lines = _lines_from_the_end(log, began)
    last = next(lines, "")
    step = _STEP.match(last)
    if step is None:
        return last[:500]
    what, why = (step[1], step[2]) if step[2] else (step[3], step[4])
    told = f"{why[:300]}, in {what if len(what) <= _SHOWN else f'{what[:_SHOWN]}…'}"
    said = next(lines, "")
    return f"{said[:300]} ({told})" if said and not _PODMAN.match(said) else told


def _lines_from_the_end(log: Path, began: int) -> Iterator[str]:
    lines = _COLOURS.sub("", tail(log, began).decode(errors="replace")).splitlines()
    return filter(None, map(one_line, reversed(lines)))


def _reason(log: Path, began: int) -> str:
    """What a script within the command said before it gave up; podman has the last word after it."""
    found = re.findall(rb"^lego: (.+)$", tail(log, began), re.MULTILINE)
    return one_line(found[-1].decode(errors="replace"))[:500] if found else ""


def tail(log: Path, began: int) -> bytes:
    """The end of what stands in a log from byte `began` on."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(began, size - _TAIL))
        return file.read()
