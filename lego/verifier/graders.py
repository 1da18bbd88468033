"""Reading a reward, on the host, from what a verification container left.

The contract is Harbor's: reward.json (finite numbers by key) wins over reward.txt (one finite number); empty,
missing or non-numeric is no reward at all, never 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

REWARD_JSON, REWARD_TEXT = "/logs/verifier/reward.json", "/logs/verifier/reward.txt"
TEST_LOG = "/logs/verifier/test-stdout.txt"

TRUST = (
    "harbor: the reward file is written by the task's own test.sh in a fresh container without network; exit code "
    "and output prove nothing. Code under test runs beside the tests there, so a task is as hard to cheat as its "
    "test.sh makes it."
)


@dataclass(frozen=True)
class Reward:
    """`value` None means that there is no reward, and `why` says so. `parts` are reward.json's keys."""

    value: float | None
    why: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)


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
