"""Reading a container's output from conmon's log file as it grows.

The file outlives our service and our connections, so no output is lost when either dies. Each line is
`TIME STREAM TAG CONTENT`, tag F for a full line and P for a piece of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from lego.sandbox.health import Gate

Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
_CHUNK = 1 << 20


class LogTail:
    """Keeps at most `limit` bytes of each stream: its first half and its last half. `dropped` counts the rest."""

    def __init__(
        self,
        path: Path,
        limit: int,
        on_output: OnOutput | None = None,
        gates: Sequence[Gate] = (),
        offset: int = 0,
    ) -> None:
        """`gates`: standard output before one has passed is the gate's own. `offset`: where in the file to begin."""
        self._path = path
        self._gates = gates
        self._half = max(limit // 2, 1)
        self._on_output = on_output
        self.offset = offset
        self._rest = b""
        self._head: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._tail: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.dropped = 0

    def poll(self, *, to_end: bool = False) -> None:
        """Take in what was written since the last poll: one chunk, or with `to_end` everything."""
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, 2)
                if size < self.offset:
                    # conmon starts the file over when it reaches its size limit.
                    self.offset, self._rest = 0, b""
                file.seek(self.offset)
                while data := file.read(_CHUNK):
                    self.offset += len(data)
                    self._take(data)
                    if not to_end:
                        return
        except FileNotFoundError:
            return

    def output(self, stream: Stream) -> bytes:
        """What was kept of a stream."""
        return bytes(self._head[stream] + self._tail[stream])

    def _take(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        pieces: dict[Stream, list[bytes]] = {"stdout": [], "stderr": []}
        for line in lines:
            fields = line.split(b" ", 3)
            if len(fields) == 4 and fields[1] in (b"stdout", b"stderr"):
                stream: Stream = "stdout" if fields[1] == b"stdout" else "stderr"
                pieces[stream].append(fields[3] + (b"" if fields[2] == b"P" else b"\n"))
        for stream, parts in pieces.items():
            content = b"".join(parts)
            for gate in self._gates if stream == "stdout" else ():
                content = gate.take(content)
            if content:
                self._keep(stream, content)

    def _keep(self, stream: Stream, content: bytes) -> None:
        if self._on_output is not None:
            self._on_output(stream, content)
        head, tail = self._head[stream], self._tail[stream]
        room = self._half - len(head)
        head += content[:room] if room > 0 else b""
        tail += content[max(room, 0) :]
        over = len(tail) - self._half
        if over > 0:
            del tail[:over]
            self.dropped += over
