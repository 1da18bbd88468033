"""Which trials are exported, and each one as what all formats are made of: its segments and their conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lego.rundb import calls
from lego.rundb.cut import call_rows
from lego.rundb.store import Row, Store
from lego.rundb.verdicts import IS_LATEST, SOLVED
from lego.trajectory.segments import Keep, Segment, segments
from lego.trajectory.tree import rebuild


@dataclass(frozen=True)
class Choice:
    """Which finished trials. split: train, eval or demo, "" for all; rounds: ordinals, harnesses: names, empty for all;
    solved: only those whose verdict that counts says so, and without tampering."""

    split: str = ""
    rounds: tuple[int, ...] = ()
    harnesses: tuple[str, ...] = ()
    solved: bool = False


@dataclass(frozen=True)
class Turn:
    """A message of a conversation (as the calls table has it), and the seq of the call that sampled it, if any did."""

    message: dict[str, Any]
    call: int | None = None


@dataclass(frozen=True)
class Part:
    """One segment of a trial: `segment`, number `number` of `parts`; the conversation that it is, the last reply
    included; the tools on offer; the calls on its path, by seq."""

    trial: Row
    number: int
    parts: int
    segment: Segment
    turns: tuple[Turn, ...]
    tools: list[dict[str, Any]]
    calls: dict[int, Row]

    def about(self) -> dict[str, Any]:
        """What every format says of the trial. reward: null where no verifier gave one. temperature: what its log-probs
        are at."""
        row = self.trial
        names = ("trial", "task", "harness", "split", "round", "sample", "policy", "ending", "reward", "outcome")
        return {name: row[name] for name in names} | {
            "solved": bool(row["solved"]), "tampered": row["tamper"] not in (None, "[]"),
            "segment": self.number, "segments": self.parts,
            "temperature": json.loads(row["settings"]).get("temperature"),
        }  # fmt: skip


@dataclass
class Left:
    """Trials that were chosen and gave nothing."""

    without_tokens: int = 0
    without_samples: int = 0


def chosen(store: Store, choice: Choice) -> list[Row]:
    """The trials of a choice, in order."""
    where, params = ["t.status = 'finished'"], []
    for column, values in (
        ("r.kind", [choice.split] if choice.split else []),
        ("r.ordinal", choice.rounds),
        ("t.harness", choice.harnesses),
    ):
        if values:
            where.append(f"{column} IN ({', '.join('?' * len(values))})")
            params += list(values)
    if choice.solved:
        where.append(SOLVED)
    return store.rows(
        "SELECT t.id AS trial, t.task_id AS task, t.harness, r.kind AS split, r.ordinal AS round, t.sample,"
        " r.policy_version AS policy, t.ending, r.settings, v.reward, v.outcome, v.tamper,"
        f" coalesce({SOLVED}, 0) AS solved FROM trials t JOIN rounds r ON r.id = t.round_id"
        f" LEFT JOIN verdicts v ON {IS_LATEST} WHERE {' AND '.join(where)} ORDER BY t.id",
        params,
    )


def parts(store: Store, trials: Sequence[Row], left: Left) -> Iterator[Part]:
    """The segments of the trials, one trial in memory at a time. What is left out of the loss is no segment here
    either. `left` counts trials whose token data the retention rule removed, and those without a sampled token."""
    for trial in trials:
        recorded = [row for row in calls.of_trial(store, trial["trial"]) if row["kind"] != "rejected"]
        if any(row["completion_ids"] is None for row in recorded):
            left.without_tokens += 1
            continue
        found = segments(rebuild(call_rows(recorded)), Keep(json.loads(trial["settings"]).get("sampler", "policy")))
        left.without_samples += not found.segments
        said = _conversations(recorded)
        by_seq = {row["seq"]: row for row in recorded}
        for number, segment in enumerate(found.segments):
            tools = calls.tools(store, by_seq[segment.leaf]["tools_digest"])
            yield Part(trial, number, len(found.segments), segment, said[segment.leaf], tools, by_seq)


def _conversations(recorded: Sequence[Row]) -> dict[int, tuple[Turn, ...]]:
    """Call -> its request's messages and its reply. A request is stored as what it adds to another call's."""
    said: dict[int, tuple[Turn, ...]] = {}
    for row in recorded:
        delta = row["messages"]
        kept = said[delta["of"]][: delta["kept"]] if delta.get("kept") else ()
        reply = (Turn(row["reply"], row["seq"]),) if row["reply"] else ()
        said[row["seq"]] = (*kept, *(Turn(message) for message in delta["new"]), *reply)
    return said
