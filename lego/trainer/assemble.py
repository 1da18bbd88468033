"""From a round's rows to the segments a step is made of: every exclusion is a row with its reason."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import numpy as np

from lego.config.schema import Config
from lego.errors import TrainerError
from lego.objective.advantages import SegmentWeight, group_advantages, segment_weights
from lego.objective.groups import group_reward
from lego.objective.recipes import recipe
from lego.rundb import calls, catalogue, routing, trials, verdicts
from lego.rundb.cut import call_rows
from lego.rundb.rounds import Round
from lego.rundb.store import Row, Store
from lego.rundb.training import SampleRow
from lego.trainer.batch import TrainSegment
from lego.trainer.routing import path_routing
from lego.trajectory.segments import Keep, Segmentation, segments
from lego.trajectory.tree import rebuild

Sampler = Literal["policy", "script"]


@dataclass
class Assembly:
    """`segments` enter the step; `rows` are all samples, the dropped ones with why.

    segment_weight: train.objective.segment_weight. groups: how many by state (ok, flat, skipped). rewards: of graded
    trials. excluded: sampled tokens left out of the loss, by reason.
    """

    segment_weight: SegmentWeight = "tokens"
    segments: list[TrainSegment] = field(default_factory=list)
    rows: list[SampleRow] = field(default_factory=list)
    groups: Counter[str] = field(default_factory=Counter)
    rewards: list[float] = field(default_factory=list)
    excluded: Counter[str] = field(default_factory=Counter)

    def metrics(self) -> dict[str, float]:
        """By name (lego.metrics)."""
        values = {"step/dropped": float(sum(bool(row.dropped) for row in self.rows))}
        if self.groups:
            values |= {
                "group/graded": float(self.groups["ok"] + self.groups["flat"]),
                "group/flat": float(self.groups["flat"]),
                "group/skipped": float(self.groups["skipped"]),
            }
        if self.rewards:
            values["reward/mean"] = statistics.fmean(self.rewards)
        if len(self.rewards) > 1:
            values["reward/std"] = statistics.stdev(self.rewards)
        return values

    def add(
        self,
        trial: Row,
        verdict_id: int | None,
        cut: Segmentation,
        advantage: float,
        sampler: Sampler,
        group: str,
        counts: float = 1.0,
    ) -> None:
        """Enter one trial's segments; together they weigh 1."""
        if not cut.segments and not cut.dropped:
            self.drop(trial, f"nothing but {', '.join(cut.excluded)} calls" if cut.excluded else "it sampled nothing")
        owned = [segment.sampled for segment in cut.segments]
        weights = segment_weights(owned, self.segment_weight) if owned else []
        for number, (segment, weight) in enumerate(zip(cut.segments, weights, strict=True)):
            self.rows.append(SampleRow(trial["id"], verdict_id, number, advantage, weight, segment.sampled))
            self.segments.append(
                TrainSegment(
                    trial["id"],
                    segment.ids,
                    segment.mask,
                    segment.logprobs,
                    advantage,
                    weight,
                    group,
                    sampler,
                    segment.routing,
                    counts,
                )  # fmt: skip
            )
        for number, reason in enumerate(cut.dropped, start=len(cut.segments)):
            self.rows.append(SampleRow(trial["id"], verdict_id, number, advantage, 0.0, 0, reason))
        self.excluded += cut.excluded

    def drop(self, trial: Row, reason: str) -> None:
        """A whole trial that stays out of the loss."""
        self.rows.append(SampleRow(trial["id"], trial.get("verdict_id"), 0, 0.0, 0.0, 0, reason))


def assemble(store: Store, round_: Round, config: Config) -> Assembly:
    """The samples of a finished, verified round. A group is (round, task, harness); only graded members count.

    What was not sampled from the newest policy, the one that is trained, is left out.

    Raises TrainerError while trials are still to be run or verified.
    """
    _require_complete(store, round_)
    newest = catalogue.policy(store)
    assert newest is not None, "a round cannot exist before a policy"
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    rows = verdicts.graded(store, round_.id)
    for row in rows:
        groups[row["task_id"], row["harness"]].append(row)
    given = _rewards(rows, config, round_.ordinal)
    out = Assembly(cast(SegmentWeight, config.train.objective.segment_weight))
    how = recipe(config.train.objective)
    counts = {"ok": 1.0, "flat": config.train.objective.flat_weight if how.flat == "weigh" else 1.0}
    for (task, harness), members in groups.items():
        rewards = [given[row["id"]] for row in members]
        result = group_advantages(rewards, how.advantage)
        out.groups[result.state] += 1
        out.rewards += [reward for reward in rewards if reward is not None]
        for row, reward, advantage in zip(members, rewards, result.values, strict=True):
            reason = _dropped(row, reward, advantage, result.state, config.verify.tamper, how.flat)
            if reason:
                out.drop(row, reason)
            else:
                assert advantage is not None
                cut = _of_policy(cut_trial(store, row["id"], "policy"), newest.version)
                group = f"{round_.id}/{task}/{harness}"
                out.add(row, row["verdict_id"], cut, advantage, "policy", group, counts[result.state])
    return out


def assemble_demonstrations(store: Store, round_: Round) -> Assembly:
    """Scripted trials as supervised samples: every finished one, whatever its reward, the script's tokens trained."""
    _require_complete(store, round_)
    out = Assembly()
    for row in verdicts.graded(store, round_.id):
        if row["ending"] != "exit":
            out.drop(row, f"ended by {row['ending']}")
        else:
            out.add(row, row["verdict_id"], cut_trial(store, row["id"], "script"), 0.0, "script", row["task_id"])
    return out


def assemble_solved(store: Store, rounds: list[Round]) -> Assembly:
    """The policy's own solved trials, of closed training rounds, as supervised samples."""
    out = Assembly()
    for round_ in rounds:
        for row in verdicts.graded(store, round_.id):
            if row["solved"]:
                out.add(row, row["verdict_id"], cut_trial(store, row["id"], "policy"), 0.0, "policy", row["task_id"])
    return out


def cut_trial(store: Store, trial_id: int, sampler: Sampler) -> Segmentation:
    """The segments of one stored trial."""
    recorded = [row for row in calls.of_trial(store, trial_id) if row["kind"] != "rejected"]
    if any(row["completion_ids"] is None for row in recorded):
        raise TrainerError(f"the token data of trial {trial_id} was removed by the retention rule", fault="user")
    tree = rebuild(call_rows(recorded))
    cut = segments(tree, Keep(sampler=sampler))
    experts = routing.of_trial(store, trial_id)
    if not experts:
        return cut
    routed = [replace(one, routing=path_routing(tree, tree[one.leaf], experts, len(one.ids))) for one in cut.segments]
    return replace(cut, segments=routed)


def _of_policy(cut: Segmentation, version: int) -> Segmentation:
    """Without the segments in which another policy had a part."""
    stale = [one for one in cut.segments if one.policy_versions != (version,)]
    told = [
        f"segment of call {one.leaf}: sampled from policy {', '.join(map(str, one.policy_versions))}, not {version}"
        for one in stale
    ]
    kept = [one for one in cut.segments if one.policy_versions == (version,)]
    return replace(cut, segments=kept, dropped=[*cut.dropped, *told])


def _rewards(rows: list[Row], config: Config, ordinal: int) -> dict[int, float | None]:
    """Trial -> reward. For the control of train.shuffle_rewards the graded trials of the round exchange theirs, by the
    run's seed: as many rewards as were earned, given to whoever."""
    earned = {row["id"]: group_reward(row, config.verify.tamper, config.train.truncated) for row in rows}
    if not config.train.shuffle_rewards:
        return earned
    graded = sorted(trial for trial, reward in earned.items() if reward is not None)
    order = np.random.default_rng([config.run.seed, ordinal]).permutation(len(graded))
    return earned | {trial: earned[graded[int(at)]] for trial, at in zip(graded, order, strict=True)}


def _dropped(row: Row, reward: float | None, advantage: float | None, state: str, tamper: str, flat: str) -> str:
    if row["reward"] is None:
        return "verifier fault"
    if reward is None:
        tampered = json.loads(row["tamper"]) and tamper == "exclude"
        return "tamper" if tampered else f"truncated by {row['ending']}"
    if state == "skipped" or advantage is None:
        return "fewer than two graded in its group"
    if state == "flat" and flat == "skip":
        return "its group has no spread"
    return ""


def _require_complete(store: Store, round_: Round) -> None:
    left = trials.unfinished(store, round_.id)
    if left:
        raise TrainerError(
            f"round {round_.ordinal} has {left} trials to run", hint="lego rollout, then lego verify", fault="user"
        )
    # Those that a killed `lego verify` still holds are not verified either.
    unverified = verdicts.waiting(store, round_.id) + verdicts.being_verified(store, round_.id)
    if unverified:
        raise TrainerError(
            f"round {round_.ordinal} has {unverified} trials to verify", hint="lego verify", fault="user"
        )
