"""Calls: what the proxy recorded, one row a request; tool lists stored once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lego.rundb.blobs import pack_floats, pack_ids, to_json, unpack_floats, unpack_ids
from lego.rundb.store import Row, Store

_PLAIN = (
    "seq",
    "parent_seq",
    "shared",
    "kind",
    "sampler",
    "policy_version",
    "dialect",
    "prompt_tokens",
    "finish",
    "fate",
    "status",
    "reason",
    "started_at",
    "first_token_at",
    "ended_at",
)
_JSON = ("messages", "reply", "wishes", "drift")


def record(store: Store, trial_id: int, call: Mapping[str, Any]) -> None:
    """Store one ended call. `call` has the fields of the proxy's FinishedCall.

    Ids are [n] integers, `logprobs` [completion tokens] floats or None where nothing was sampled from a policy.
    """
    completion = call["completion_ids"]
    logprobs = call["logprobs"]
    row: Row = {
        "trial_id": trial_id,
        **{name: call[name] for name in _PLAIN},
        **{name: to_json(call[name]) for name in _JSON},
    }
    row |= {
        "added_prompt_ids": pack_ids(call["added_prompt_ids"]),
        "completion_ids": pack_ids(completion),
        "logprobs": None if logprobs is None else pack_floats(logprobs),
        "completion_tokens": len(completion),
        "tools_digest": call["tools_digest"] or None,
    }
    with store.write():
        if call["tools_digest"]:
            store.execute(
                "INSERT INTO tool_lists (digest, tools) VALUES (?, ?) ON CONFLICT DO NOTHING",
                (call["tools_digest"], call["tools"]),
            )
        store.insert("calls", row)


def settle(store: Store, trial_id: int, fates: Mapping[int, str]) -> None:
    """Write the final fates, seq -> fate: a call can be superseded after its row was written."""
    with store.write():
        for seq, fate in fates.items():
            store.execute("UPDATE calls SET fate = ? WHERE trial_id = ? AND seq = ?", (fate, trial_id, seq))


def of_trial(store: Store, trial_id: int) -> list[Row]:
    """The trial's calls in seq order, unpacked: ids [n] int32, logprobs [n] float32 or None, JSON parsed."""
    rows = store.rows("SELECT * FROM calls WHERE trial_id = ? ORDER BY seq", (trial_id,))
    for row in rows:
        for name in ("added_prompt_ids", "completion_ids"):
            row[name] = None if row[name] is None else unpack_ids(row[name])
        row["logprobs"] = None if row["logprobs"] is None else unpack_floats(row["logprobs"])
        for name in _JSON:
            row[name] = json.loads(row[name])
    return rows


def commands(store: Store, trial_id: int) -> list[tuple[int, str]]:
    """What the policy asked its harness to do: (seq, text) of each argument of each tool call, and of each fenced
    block where it calls none."""
    found: list[tuple[int, str]] = []
    for row in store.rows(
        "SELECT seq, reply FROM calls WHERE trial_id = ? AND kind != 'rejected' ORDER BY seq", (trial_id,)
    ):
        reply = json.loads(row["reply"]) or {}
        asked = reply.get("tool_calls") or []
        texts = [text for call in asked for text in _texts(call.get("arguments") or "")]
        texts += [] if asked else (reply.get("content") or "").split("```")[1::2]
        found += [(row["seq"], text) for text in texts]
    return found


def _texts(arguments: str) -> list[str]:
    """The texts in a tool call's arguments; those that are no JSON are one text."""
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        return [arguments]
    return [value for value in values.values() if isinstance(value, str)] if isinstance(values, dict) else [arguments]


def tools(store: Store, digest: str | None) -> list[dict[str, Any]]:
    text = store.value("SELECT tools FROM tool_lists WHERE digest = ?", (digest,)) if digest else None
    return json.loads(text) if text else []


def drop_tokens(store: Store, round_id: int) -> None:
    """Retention: forget the token data of a closed round; counts, messages and fates stay."""
    store.execute(
        "UPDATE calls SET added_prompt_ids = NULL, completion_ids = NULL, logprobs = NULL WHERE trial_id IN"
        " (SELECT t.id FROM trials t JOIN rounds r ON r.id = t.round_id WHERE r.id = ? AND r.status = 'closed')",
        (round_id,),
    )


def has_tokens(store: Store, round_id: int) -> bool:
    found = store.value(
        "SELECT 1 FROM calls c JOIN trials t ON t.id = c.trial_id"
        " WHERE t.round_id = ? AND c.completion_ids IS NOT NULL LIMIT 1",
        (round_id,),
    )
    return found is not None


def totals(store: Store, round_id: int) -> Row:
    """Sums over the round's recorded calls: calls, those of finished trials, sampled tokens, prompt tokens; first and
    last time."""
    row = store.row(
        "SELECT count(*) AS calls, coalesce(sum(t.status = 'finished'), 0) AS of_finished,"
        " coalesce(sum(c.completion_tokens), 0) AS sampled,"
        " coalesce(sum(c.prompt_tokens), 0) AS prompted, min(c.started_at) AS first, max(c.ended_at) AS last"
        " FROM calls c JOIN trials t ON t.id = c.trial_id WHERE t.round_id = ? AND c.kind != 'rejected'",
        (round_id,),
    )
    assert row is not None
    return row
