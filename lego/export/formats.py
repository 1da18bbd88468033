"""Trials as rows of the formats that other tools read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from lego.export.trials import Part, Turn

ATIF = "ATIF-v1.7"


def tokens_row(part: Part) -> dict[str, Any]:
    """A segment as it is trained. ids [n] integers; mask [n], 1 on the sampled ids that this segment owns; logprobs
    [n], nats at the row's temperature (at 1 where that is 0), 0 where the mask is 0 (and everywhere, where a script
    spoke); calls [n], the call that sampled an owned id, else -1."""
    segment = part.segment
    return part.about() | {
        "policies": list(segment.policy_versions), "ids": segment.ids.tolist(),
        "mask": segment.mask.astype(int).tolist(), "logprobs": segment.logprobs.tolist(),
        "calls": segment.owners.tolist(), "messages": [turn.message for turn in part.turns], "tools": part.tools,
    }  # fmt: skip


def chat_row(part: Part) -> dict[str, Any]:
    """A segment as a conversation: `prompt` up to the first reply sampled in it, `completion` from there, `tools`."""
    own = (number for number, turn in enumerate(part.turns) if turn.call in part.segment.call_ids)
    first = next(own, len(part.turns))
    said = [_chat_message(turn.message) for turn in part.turns]
    tools = [{"type": "function", "function": tool} for tool in part.tools]
    return part.about() | {"prompt": said[:first], "completion": said[first:], "tools": tools}


def atif_row(part: Part) -> dict[str, Any]:
    """A segment as one trajectory. Segments of a trial share its session_id. Replies that another segment owns are
    marked as copied context. Token ids and log-probs of replies are exact; those of prompts are left out."""
    trial, steps = part.trial, _steps(part)
    sampled = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "schema_version": ATIF,
        "session_id": f"trial-{trial['trial']}",
        "trajectory_id": f"trial-{trial['trial']}-{part.number}",
        "agent": {
            "name": trial["harness"],
            "version": "unknown",
            "model_name": f"policy-{trial['policy']}",
            **({"tool_definitions": [{"type": "function", "function": tool} for tool in part.tools]}
               if part.tools else {}),
        },
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(one["prompt_tokens"] for one in sampled),
            "total_completion_tokens": sum(one["completion_tokens"] for one in sampled),
            "total_steps": len(steps),
        },
        "extra": {"lego": version("lego"), **part.about()},
    }  # fmt: skip


ROWS: Mapping[str, Callable[[Part], dict[str, Any]]] = {"tokens": tokens_row, "chat": chat_row, "atif": atif_row}


def _chat_message(message: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("reasoning"):
        out["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        out["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
            for call in message["tool_calls"]
        ]
    return out | {key: message[key] for key in ("tool_call_id", "name") if message.get(key)}


def _steps(part: Part) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    for turn in part.turns:
        message = turn.message
        if message["role"] == "tool" and steps and steps[-1]["source"] == "agent":
            # A result names the call it answers only where that is one of the step's, as the format demands.
            asked = {call["tool_call_id"] for call in steps[-1].get("tool_calls", ())}
            of = {"source_call_id": message["tool_call_id"]} if message.get("tool_call_id") in asked else {}
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({**of, "content": message.get("content") or ""})
        elif message["role"] == "assistant":
            steps.append({"step_id": len(steps) + 1, **_agent_step(part, turn)})
        else:
            source = "system" if message["role"] == "system" else "user"
            steps.append({"step_id": len(steps) + 1, "source": source, "message": message.get("content") or ""})
    return steps


def _agent_step(part: Part, turn: Turn) -> dict[str, Any]:
    message = turn.message
    step: dict[str, Any] = {"source": "agent", "message": message.get("content") or ""}
    if message.get("reasoning"):
        step["reasoning_content"] = message["reasoning"]
    if message.get("tool_calls"):
        step["tool_calls"] = [
            {"tool_call_id": call["id"], "function_name": call["name"], **_arguments(call["arguments"])}
            for call in message["tool_calls"]
        ]
    if turn.call not in part.segment.call_ids:
        return step | {"is_copied_context": True}
    row = part.calls[turn.call]
    own = part.segment.owners == turn.call
    metrics = {
        "prompt_tokens": row["prompt_tokens"],
        "completion_tokens": row["completion_tokens"],
        "completion_token_ids": part.segment.ids[own].tolist(),
    }
    if row["logprobs"] is not None:
        metrics["logprobs"] = part.segment.logprobs[own].tolist()
    at = datetime.fromtimestamp(row["ended_at"], UTC).isoformat(timespec="milliseconds")
    return step | {"timestamp": at, "llm_call_count": 1, "metrics": metrics}


def _arguments(text: str) -> dict[str, Any]:
    """The arguments as an object; what the policy wrote instead of one stands beside it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return {"arguments": value} if isinstance(value, dict) else {"arguments": {}, "extra": {"written": text}}
