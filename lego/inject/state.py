"""What a search has done so far, so that a killed one goes on where it was."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Decision:
    """What became of one candidate. `reason` is "kept", or says why not; `task` is the kept one's id."""

    candidate: str
    reason: str
    kind: str
    task: str = ""
    seconds: float = 0.0


class State:
    """A folder beside the tasks: the measured baseline, what tasks share, and a line for each candidate decided."""

    def __init__(self, folder: Path, seed: int, key: str) -> None:
        """`key`: whatever decides the outcomes. What was done under another one counts no more."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if self.read("key") != key:
            for path in (folder / "baseline.json", folder / "pins.json", *folder.glob("decisions-*.jsonl")):
                path.unlink(missing_ok=True)
            self.write("key", key.encode())
        self._log = folder / f"decisions-{seed}.jsonl"
        self.decisions: dict[str, Decision] = {}
        for line in self._log.read_bytes().splitlines() if self._log.exists() else ():
            try:
                decision = Decision(**json.loads(line))
            except (ValueError, TypeError):
                # The end of a line that a kill cut off.
                continue
            self.decisions[decision.candidate] = decision

    def forget(self, candidate: str) -> None:
        """A candidate is to be tried again: its task is no longer there."""
        self.decisions.pop(candidate)

    def decide(self, decision: Decision) -> None:
        self.decisions[decision.candidate] = decision
        # A line of its own even after one that a kill cut off.
        cut_off = self._log.exists() and self._log.read_bytes()[-1:] not in (b"", b"\n")
        with self._log.open("ab") as log:
            log.write((b"\n" if cut_off else b"") + json.dumps(asdict(decision)).encode() + b"\n")

    def read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> Path:
        """Write a file whole or not at all; one that holds the same already is left as it is."""
        path = self.folder / name
        if path.exists() and path.read_bytes() == data:
            return path
        aside = self.folder / f".{name}.{os.getpid()}"
        try:
            aside.write_bytes(data)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return path
