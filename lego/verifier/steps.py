"""Tasks of several steps: each step's verdict, and the one that is made of them.

Rewards are joined as Harbor joins them: key by key, their mean over the steps or those of the last one. A step that was
not begun because an earlier one earned less than its min_reward is left out. One that was not begun because the agent
came to a cap, or left a container in which nothing can begin, counts as 0: breaking off is no way to a better mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lego.sandbox.submission import Submission
from lego.tasks.task import Step, Strategy, Task
from lego.verifier.bench import Bench
from lego.verifier.grade import Candidate, Gold, grade
from lego.verifier.verdict import Verdict


def rewards_of(verdict: Verdict) -> dict[str, float]:
    """A verdict's rewards by name; none where there is none."""
    if verdict.reward is None:
        return {}
    return dict(verdict.detail.get("parts") or {"reward": verdict.reward})


def unmet(step: Step, rewards: Mapping[str, float]) -> str:
    """Which of a step's rewards is less than the next step asks for, in words; empty where none is."""
    for key, least in step.min_reward.items():
        found = rewards.get(key)
        if found is None or found < least:
            return f"{key} {'missing' if found is None else format(found, 'g')}, at least {least:g} is asked for"
    return ""


def joined(rewards: Sequence[Mapping[str, float]], strategy: Strategy) -> dict[str, float]:
    """The rewards of several steps as those of one; a key that a step does not have is 0 there."""
    if strategy == "final":
        return dict(rewards[-1])
    keys = dict.fromkeys(key for one in rewards for key in one)
    return {key: sum(one.get(key, 0.0) for one in rewards) / len(rewards) for key in keys}


def one_reward(rewards: Mapping[str, float]) -> float:
    """Of several the one called `reward`, else their mean; 0 for none."""
    return rewards.get("reward", sum(rewards.values()) / max(len(rewards), 1))


async def grade_steps(
    task: Task, benches: Sequence[Bench], candidate: Candidate, gold: Gold = Bench.gold_seen
) -> Verdict:
    """Grade each step that was begun, in a container of its own, and join the verdicts. `benches`: one a step. A fault
    in one step is the whole's. `gold`: see lego.verifier.grade. Of a solution, detail["seen NAME"] is what the tests of
    each step showed."""
    parts = candidate.parts if isinstance(candidate, Submission) else None
    verdicts: list[Verdict] = []
    short = ""
    for number, (step, bench) in enumerate(zip(task.steps, benches, strict=True)):
        if (parts is None and short) or (parts is not None and number == len(parts)):
            break
        verdict = await grade(bench, parts[number] if parts is not None else candidate, gold)
        verdicts.append(verdict)
        if verdict.reward is None:
            return _whole(task, verdicts, verdict.outcome, None, verdict.detail)
        short = unmet(step, rewards_of(verdict))
    rewards = [rewards_of(verdict) for verdict in verdicts]
    if not short:
        rewards += [{"reward": 0.0}] * (len(task.steps) - len(verdicts))
    parts_joined = joined(rewards, task.strategy)
    reward = one_reward(parts_joined)
    broken = any(verdict.outcome == "broken" for verdict in verdicts)
    outcome = "passed" if reward >= 1.0 else "broken" if broken else "failed"
    detail: dict[str, Any] = {"parts": parts_joined}
    if broken:
        detail["reason"] = next(one.detail.get("reason", "") for one in verdicts if one.outcome == "broken")
    return _whole(task, verdicts, outcome, reward, detail)


def _whole(
    task: Task, verdicts: Sequence[Verdict], outcome: Any, reward: float | None, detail: Mapping[str, Any]
) -> Verdict:
    told = [
        {"step": step.name, "outcome": one.outcome, "reward": one.reward, "reason": one.detail.get("reason", "")}
        for step, one in zip(task.steps, verdicts, strict=False)
    ]
    told += [
        {"step": step.name, "outcome": "not verified" if reward is None else "not begun", "reward": None, "reason": ""}
        for step in task.steps[len(verdicts) :]
    ]
    gold: dict[str, Any] = {
        key: sorted({name for one in verdicts for name in one.detail[key]})
        for key in ("changed", "lines")
        if all(key in one.detail for one in verdicts)
    }
    if gold:
        gold |= {f"seen {step.name}": one.detail["seen"] for step, one in zip(task.steps, verdicts, strict=False)}
    kept = {key: value for key, value in detail.items() if key not in ("seen", "gold_seen", *gold)}
    return Verdict(
        outcome,
        reward,
        {**kept, **gold, "steps": told},
        tuple(dict.fromkeys(found for one in verdicts for found in one.tamper)),
        verdicts[-1].trust,
        b"".join(
            f"--- step {step.name} ---\n".encode() + one.log for step, one in zip(task.steps, verdicts, strict=False)
        ),
        sum(one.seconds for one in verdicts),
    )
