"""What the proxy reports: one record a request, and the sum of a session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lego.engine.base import FloatArray, IntArray
from lego.errors import Fault
from lego.proxy.rules import CallKind
from lego.trajectory.messages import Message, Tool


@dataclass(frozen=True)
class FinishedCall:
    """One request that has ended: the `calls` row, less the trial's id. Times are seconds since the epoch.

    seq counts the session's requests from 1 as they arrive, so a parent's is smaller than its children's; records come
    in the order requests end.
    A rejected request (kind "rejected") has no tokens and is never a parent; `status` and `reason` say why.
    shared: how many ids of the parent's prompt + completion the prompt begins with; added_prompt_ids come after.
    messages: {"new": the messages after the first "kept"; those begin call number "of"'s conversation, reply counted}.
    reply: the message the harness was sent (in part, where abandoned), with its minted ids; None when nothing was.
    tools_digest names `tools` (JSON text, "" when none were on offer). wishes: sampling parameters the harness
    asked for that are not the run's. routing: [ids, layers, k] int16, the experts of the ids from number routing_begin
    on, less the last one; None where nothing records them. drift: where and why the call does not continue its
    predecessor.
    """

    seq: int
    parent_seq: int | None
    shared: int
    kind: CallKind | Literal["rejected"]
    sampler: Literal["policy", "script"]
    policy_version: int
    dialect: str
    added_prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray | None
    prompt_tokens: int
    finish: str
    fate: str
    status: int
    reason: str
    messages: dict[str, Any]
    reply: dict[str, Any] | None
    tools_digest: str
    tools: str
    wishes: dict[str, Any]
    drift: dict[str, Any]
    started_at: float
    first_token_at: float | None
    ended_at: float
    routing_begin: int = 0
    routing: npt.NDArray[np.int16] | None = None


@dataclass
class Summary:
    """A session in numbers. Tokens are ids; seconds are wall clock.

    calls: requests that sampled something.  heard: those whose reply the agent may have acted upon: it reached the
    harness whole, or had a tool call in the part that did.
    foreign: requests that the harness did not make, refused or answered.
    rejected: how many requests were refused, by reason.  overflowed: the last request was more than the context holds.
    engine_seconds: time with at least one call queued or generating (the trial clock stood still meanwhile).
    faults: replies lost to our own engine or proxy; `fault` is the last one's message ("" = none), `fault_of` whose
    fault it was by the error's own word.
    """

    calls: int = 0
    heard: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    abandoned: int = 0
    malformed: int = 0
    engine_seconds: float = 0.0
    foreign: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    overflowed: bool = False
    faults: int = 0
    fault: str = ""
    fault_of: Fault | Literal[""] = ""
    cap_reason: str = ""


def message_json(message: Message) -> dict[str, Any]:
    """The message as a JSON object; fields that say nothing are left out."""
    out: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning is not None:
        out["reasoning"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls]
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        out["name"] = message.name
    return out


def tools_json(tools: Sequence[Tool]) -> tuple[str, str]:
    """(digest, JSON text) of a tool list; ("", "") for none."""
    if not tools:
        return "", ""
    text = json.dumps([{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools])
    return hashlib.sha256(text.encode()).hexdigest()[:32], text
