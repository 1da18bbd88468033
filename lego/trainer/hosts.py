"""Many machines: the file that names them, and how workers there learn that the command is gone.

DeepSpeed's launcher starts them through pdsh and ssh. Those close no input when the command is killed, so a sign of
life lies in the folder that all share: a token of this job's own and a number that goes up.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

from lego.errors import ConfigError

ALIVE_FILE = "alive"
SIGN_EVERY = 1.0
SILENCE = 60.0
"""Seconds between signs of life, and without one after which a worker ends."""

_SETTING = "train.deepspeed.hostfile"
_LINE = re.compile(r"(\S+)\s+slots=([1-9][0-9]{0,5})")


def read_hosts(file: Path) -> dict[str, int]:
    """Host -> how many processes it has, in order, from lines like `node-1 slots=8`; `#` begins a comment.

    Raises ConfigError with the line that is not so, for a host named twice, and where there is none.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        why = "is not a file" if not file.exists() else f"cannot be read: {getattr(error, 'strerror', None) or error}"
        raise ConfigError(f"{_SETTING}: {file} {why}") from error
    hosts: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if not match:
            raise ConfigError(f"{_SETTING}: {file} line {number}: {text[:200]!r} is not HOST slots=NUMBER")
        host, slots = match.groups()
        if host in hosts:
            raise ConfigError(f"{_SETTING}: {file} line {number}: {host} is named twice")
        hosts[host] = int(slots)
    if not hosts:
        raise ConfigError(f"{_SETTING}: {file} names no host", hint="a line is like: node-1 slots=8")
    return hosts


def require_launcher(hosts: dict[str, int]) -> None:
    """Raises ConfigError where a program that reaches the hosts is not installed."""
    for program in ("ssh", "pdsh") if len(hosts) > 1 else ("ssh",):
        if shutil.which(program) is None:
            raise ConfigError(
                f"{_SETTING}: DeepSpeed's launcher starts workers through {program}, which is not installed",
                hint="install it on the machine of the command, or train on this machine alone (hostfile: '')",
            )


class SignOfLife:
    """What the command writes while its workers run. token: of the job."""

    def __init__(self, folder: Path, token: str) -> None:
        self._file, self._token = folder / ALIVE_FILE, token
        self._given, self._last = 0, float("-inf")

    def give(self) -> None:
        """Call it often; it writes now and then."""
        if time.monotonic() - self._last >= SIGN_EVERY:
            self._given, self._last = self._given + 1, time.monotonic()
            aside = self._file.with_name(f".{ALIVE_FILE}")
            with contextlib.suppress(OSError):  # the next one may get through
                aside.write_text(json.dumps([self._token, self._given]), encoding="utf-8")
                aside.rename(self._file)


class Listener:
    """Whether the command of a job still gives signs of life. clock: seconds, going up."""

    def __init__(self, folder: Path, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._file, self._token, self._clock = folder / ALIVE_FILE, token, clock
        self._seen, self._since = -1, clock()

    def alone(self) -> bool:
        """Whether another command has the folder now, or there was no new sign for SILENCE seconds."""
        with contextlib.suppress(OSError, ValueError):
            token, given = json.loads(self._file.read_text(encoding="utf-8"))
            if token != self._token:
                return True
            if given != self._seen:
                self._seen, self._since = given, self._clock()
        return self._clock() - self._since > SILENCE


def end_when_alone(folder: Path, token: str) -> None:
    """Have this process end itself once the command of its job is gone."""
    listener = Listener(folder, token)

    def listen() -> None:
        while not listener.alone():
            time.sleep(SIGN_EVERY)
        os._exit(1)

    threading.Thread(target=listen, daemon=True).start()
