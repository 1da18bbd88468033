"""Everything about one trial, as plain data: for `lego show`, the monitor and machines. Reads only."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from lego.errors import StoreError
from lego.rundb import calls, rounds, training, trials, verdicts
from lego.rundb.blobs import unpack_bytes
from lego.rundb.store import Row, Store


def gather(store: Store, trial_id: int) -> dict[str, Any]:
    """Everything about one trial. Raises StoreError if there is no such trial.

    `turns` in the order the requests came; `verdict` the one that counts, or None; `output` what the harness
    printed and `log` what the tests printed, as text.
    """
    row = trials.trial(store, trial_id)
    if row is None:
        last = store.value("SELECT max(id) FROM trials")
        raise StoreError(
            f"there is no trial {trial_id}",
            fault="user",
            hint=f"trials go from 1 to {last}" if last else "no trial was run yet",
        )
    verdict = verdicts.latest(store, trial_id)
    round_ = rounds.get(store, row["round_id"])
    return {
        "trial": trial_id,
        "task": row["task_id"],
        "harness": row["harness"],
        "sample": row["sample"],
        "attempt": row["attempt"],
        "round": f"{round_.kind} {round_.ordinal}",
        "policy": round_.policy_version,
        **{key: row[key] for key in ("status", "fault", "ending", "reason", "exit_code", "seconds", "waited")},
        "summary": json.loads(row["summary"]),
        "submission": json.loads(row["submission_note"]),
        "turns": [_turn(call) for call in calls.of_trial(store, trial_id)],
        "verdict": None if verdict is None else _verdict(verdict),
        "samples": [
            {key: sample[key] for key in ("step", "segment", "advantage", "weight", "tokens", "dropped")}
            for sample in training.samples_of_trial(store, trial_id)
        ],
        "output": unpack_bytes(row["output"]).decode(errors="replace") if row["output"] else "",
        "log": unpack_bytes(verdict["log"]).decode(errors="replace") if verdict and verdict["log"] else "",
    }


def _turn(call: Row) -> dict[str, Any]:
    logprobs = call["logprobs"]
    return {
        "seq": call["seq"],
        "parent": call["parent_seq"],
        "kind": call["kind"],
        "fate": call["fate"],
        "finish": call["finish"],
        "status": call["status"],
        "reason": call["reason"],
        "prompt_tokens": call["prompt_tokens"],
        "sampled_tokens": call["completion_tokens"],
        "mean_logprob": None if logprobs is None or not len(logprobs) else float(logprobs.mean()),
        "new_messages": call["messages"].get("new", []),
        "reply": call["reply"],
        "drift": call["drift"],
    }


def _verdict(verdict: Row) -> dict[str, Any]:
    return {
        **{key: verdict[key] for key in ("reward", "outcome", "trust", "seconds")},
        "detail": json.loads(verdict["detail"]),
        "tamper": json.loads(verdict["tamper"]),
    }


def all_verdicts(store: Store, trial_id: int) -> list[dict[str, Any]]:
    """Every verdict on a trial, the latest, which counts, last; `at` in local time as text."""
    rows = store.rows("SELECT * FROM verdicts WHERE trial_id = ? ORDER BY id", (trial_id,))
    return [
        {
            "id": row["id"],
            "at": datetime.fromtimestamp(row["at"]).astimezone().isoformat(" ", "seconds"),
            **_verdict(row),
        }
        for row in rows
    ]


def task_history(store: Store, task_id: str) -> list[dict[str, Any]]:
    """A task through the rounds, the oldest first: kind, ordinal, policy, harness; how many trials were verified, were
    solved, tampered, broke their tests, could not be verified (errors), were lost to infrastructure; their numbers."""
    rows = store.rows(
        "SELECT r.kind, r.ordinal, r.policy_version AS policy, t.harness, count(v.reward) AS verified,"
        f" coalesce(sum({verdicts.SOLVED}), 0) AS solved, coalesce(sum(v.tamper != '[]'), 0) AS tampered,"
        " coalesce(sum(v.outcome = 'broken'), 0) AS broken, coalesce(sum(v.outcome = 'error'), 0) AS errors,"
        " coalesce(sum(t.fault = 'infra'), 0) AS infra, json_group_array(t.id) AS trials"
        f" FROM trials t JOIN rounds r ON r.id = t.round_id LEFT JOIN verdicts v ON {verdicts.IS_LATEST}"
        " WHERE t.task_id = ? GROUP BY r.id, t.harness ORDER BY r.id, t.harness",
        (task_id,),
    )
    return [{**row, "trials": sorted(json.loads(row["trials"]))} for row in rows]


def why(verdict: dict[str, Any]) -> str:
    """A verdict's reason in words."""
    detail = verdict["detail"]
    if detail.get("reason"):
        return str(detail["reason"])
    if detail.get("canary"):
        return str(detail["canary"])
    if detail.get("named"):
        failed = list(detail.get("named_failed", {}).items())
        said = f"{detail['named_passed']} of {detail['named']} named tests passed"
        more = f" and {len(failed) - 2} more" if len(failed) > 2 else ""
        return said + (f"; not {', '.join(f'{name} ({how})' for name, how in failed[:2])}{more}" if failed else "")
    parts = ", ".join(f"{name} {value:g}" for name, value in detail.get("parts", {}).items())
    given = "–" if verdict["reward"] is None else f"the tests gave {verdict['reward']:g}"
    return given + (f" ({parts})" if parts else "")


def drift_words(drift: dict[str, Any]) -> str:
    """In words why a call is no plain continuation of the one before it: what the harness changed, and where."""
    said = []
    if "foreign" in drift:
        said.append(f"not the harness's: {drift['foreign']}")
    if "how" in drift:
        place = f" at message {drift['at'] + 1}" if "at" in drift else ""
        changed = f": {drift['changed']}" if "changed" in drift else ""
        texts = f", was {drift['was']!r}, now {drift['now']!r}" if "was" in drift else ""
        said.append(f"{drift['how']}{place}{changed}{texts}")
    counted = {
        "spliced": "earlier replies put in by their ids",
        "rerendered": "earlier replies written from text",
        "volatile": "volatile lines taken out",
    }
    said += [f"{drift[key]} {words}" for key, words in counted.items() if key in drift]
    return "; ".join(said)


def readable_arguments(text: str) -> str:
    """A tool call's arguments as a person reads them: one text argument is that text, anything else its JSON."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(values, dict) and len(values) == 1 and isinstance(next(iter(values.values())), str):
        return str(next(iter(values.values())))
    return "" if values == {} else text
