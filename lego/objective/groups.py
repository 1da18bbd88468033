"""What a graded trial's reward is to its group, and which groups have anything to teach. Pure; without torch."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

TRUNCATED = ("timeout", "turns", "tokens", "context")
"""Endings by which a limit, not the agent, ended the trial."""

Group = tuple[str, str]
"""(task, harness), within one round."""


def group_reward(row: Mapping[str, Any], tamper: str, truncated: str) -> float | None:
    """The reward as the group's statistics see it; None for a trial that enters none.

    row: reward (None without a verdict), tamper (JSON list of findings), ending. tamper: verify.tamper.
    truncated: train.truncated.
    """
    if row["reward"] is None:
        return None
    tampered = bool(json.loads(row["tamper"]))
    if tampered and tamper == "exclude":
        # A way out of a reward, not out of a 0.
        return None if row["reward"] > 0 else float(row["reward"])
    if tampered and tamper == "penalise":
        return 0.0
    if row["ending"] in TRUNCATED and truncated != "train":
        return 0.0 if truncated == "penalise" else None
    return float(row["reward"])


def with_spread(rows: Iterable[Mapping[str, Any]], tamper: str, truncated: str) -> set[Group]:
    """The groups whose graded members did not all get the same reward: those with an advantage to learn from.

    rows: as `group_reward` takes them, with task_id and harness.
    """
    rewards: dict[Group, set[float]] = defaultdict(set)
    for row in rows:
        reward = group_reward(row, tamper, truncated)
        if reward is not None:
            rewards[row["task_id"], row["harness"]].add(reward)
    return {group for group, seen in rewards.items() if len(seen) > 1}
