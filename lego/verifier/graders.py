"""Graders: what a run of the hidden tests brings into the container, and how its result is read on the host.

docs/graders.md says what each can and cannot rule out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lego.tasks.task import File

REWARD_JSON, REWARD_TEXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
TEST_LOG = "/logs/verifier/test-stdout.txt"


@dataclass(frozen=True)
class Reward:
    """`value` None means that there is no reward, and `why` says so. `parts` are reward.json's keys; `detail` is what
    else the verdict should tell, small and JSON."""

    value: float | None
    why: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)


class Grader(Protocol):
    """One run of a task's tests. `trust`: what it can and cannot rule out. `reads`: absolute paths of the files it
    wants from the ended container."""

    trust: str
    reads: tuple[str, ...]

    def files(self) -> Mapping[str, File]:
        """Files by absolute path, laid in after the submission and the task's own tests."""
        ...

    def env(self) -> Mapping[str, str]:
        """Variables for test.sh."""
        ...

    def reward(self, files: Mapping[str, bytes | None], rc: int | None) -> Reward:
        """The reward, from `reads` (path -> content, None where there is no such file, cut at READ_CAP bytes) and the
        exit code of test.sh (None where it was killed)."""
        ...


READ_CAP = 16 << 20
"""Bytes that are read of one file; a file of that length is not taken for whole."""


class HarborGrader:
    """The contract is Harbor's: reward.json (finite numbers by key) wins over reward.txt (one finite number); empty,
    missing or non-numeric is no reward at all, never 0."""

    trust = (
        "harbor: the reward file is written by the task's own test.sh in a fresh container without network; exit code "
        "and output prove nothing. Code under test runs beside the tests there, so a task is as hard to cheat as its "
        "test.sh makes it."
    )
    reads: tuple[str, ...] = (REWARD_JSON, REWARD_TEXT)

    def files(self) -> Mapping[str, File]:
        return {}

    def env(self) -> Mapping[str, str]:
        return {}

    def reward(self, files: Mapping[str, bytes | None], rc: int | None) -> Reward:
        return read_reward(files)


class CommandGrader:
    """test.sh's exit code: 0 earns 1, 1 earns 0, anything else is no reward."""

    trust = (
        "command: LOW. Only the exit code of test.sh counts. Code under test that ends the test process with 0 early, "
        "or exchanges the test runner, is paid; no test is known by name. For tasks whose submissions are trusted."
    )
    reads: tuple[str, ...] = ()

    def files(self) -> Mapping[str, File]:
        return {}

    def env(self) -> Mapping[str, str]:
        return {}

    def reward(self, files: Mapping[str, bytes | None], rc: int | None) -> Reward:
        if rc in (0, 1):
            return Reward(float(rc == 0))
        return Reward(None, f"test.sh ended with exit code {rc}, neither 0 (solved) nor 1 (not solved)")


def read_reward(files: Mapping[str, bytes | None]) -> Reward:
    """The reward in REWARD_JSON or REWARD_TEXT (absolute path -> content, None where there is no file)."""
    as_json, as_text = files.get(REWARD_JSON), files.get(REWARD_TEXT)
    if as_json is not None:
        return _from_json(as_json)
    if as_text is not None:
        return _from_text(as_text)
    return Reward(None, "no reward file")


def _from_json(data: bytes) -> Reward:
    """One key `reward`, or one key at all, is the reward; of several the mean is."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return Reward(None, "reward.json is not JSON")
    if not isinstance(body, dict) or not body:
        return Reward(None, "reward.json holds no object with rewards")
    parts: dict[str, float] = {}
    for key, value in body.items():
        number = _finite(value)
        if number is None:
            return Reward(None, f"reward.json: {key!r:.80} is not a finite number")
        parts[key] = number
    value = parts["reward"] if "reward" in parts else sum(parts.values()) / len(parts)
    return Reward(value, parts=parts) if math.isfinite(value) else Reward(None, "reward.json: the mean is not finite")


def _from_text(data: bytes) -> Reward:
    text = data.decode(errors="replace").strip()
    if not text:
        return Reward(None, "reward.txt is empty")
    try:
        value = float(text)
    except ValueError:
        return Reward(None, f"reward.txt is not a number: {text[:80]!r}")
    return Reward(value) if math.isfinite(value) else Reward(None, f"reward.txt is not finite: {text[:80]!r}")


def _finite(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
