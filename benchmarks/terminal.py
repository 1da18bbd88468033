"""A command in a terminal of its own, as somebody would have it open over SSH."""

from __future__ import annotations

import os
import pty
import subprocess
import termios
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

ROWS, COLUMNS = 24, 80


class InTerminal:
    """Runs `command` in `folder` in a pseudo-terminal, whose output is read all the time. Killed at the block's end if
    it still runs."""

    def __init__(self, command: Sequence[str | Path], folder: Path) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (ROWS, COLUMNS))
        env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        self.process = subprocess.Popen(
            command, cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._master, 65536)
            except OSError:  # how a pseudo-terminal says that nobody is at its other end any more
                return
            if not piece:
                return
            self._said += piece

    @property
    def said(self) -> str:
        """Everything written so far, control sequences included."""
        return self._said.decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def cpu(self) -> float:
        """Seconds of CPU that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        os.close(self._master)
