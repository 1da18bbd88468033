"""Property: whatever a client makes of a reply it was sent whole, its next request keeps every sampled token."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.proxy.anthropic import Anthropic
from lego.proxy.dialect import Dialect, Mint, Usage
from lego.proxy.openai_responses import OpenAIResponses
from lego.proxy.reading import in_call_order
from lego.trajectory.messages import Message
from lego.trajectory.parse import Delta
from lego.trajectory.prompt import compose
from lego.trajectory.segments import segments
from lego.trajectory.tree import CallTree
from tests.proxy.families import family
from tests.trajectory._support import TOOLS, WORDS, mark, replies, tokenizer


class AnthropicClient:
    """Keeps its turns, puts streams together, and sends them back with its own habits."""

    dialect: Dialect = Anthropic()

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.turns: list[Any] = [{"role": "user", "content": "go"}]

    def body(self) -> dict[str, Any]:
        tools = [{"name": t.name, "description": t.description, "input_schema": t.parameters} for t in TOOLS]
        turns = json.loads(json.dumps(self.turns))
        if isinstance(turns[-1]["content"], list):
            turns[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
        return {"messages": turns, "tools": tools}

    def hear(self, events: list[dict[str, Any]]) -> None:
        blocks: list[dict[str, Any]] = []
        for event in events:
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "json": ""})
            elif event["type"] == "content_block_delta":
                delta = dict(event["delta"])
                kind = delta.pop("type")
                key, text = next(iter(delta.items()))
                key = "json" if kind == "input_json_delta" else key
                blocks[event["index"]][key] += text
        for block in blocks:
            text = block.pop("json")
            if block["type"] == "tool_use":
                block["input"] = _parsed(text, {"__unparsedToolInput": text})
        self.read({"content": blocks})

    def read(self, whole: dict[str, Any]) -> None:
        draw = self.data.draw
        blocks = whole["content"]
        if draw(st.booleans()):
            blocks = [block for block in blocks if block["type"] != "thinking"]
        for block in blocks:
            if block["type"] == "tool_use" and draw(st.booleans()):
                block["name"], block["input"] = "Renamed", {"filled": 1, **dict(reversed(block["input"].items()))}
        self.turns.append({"role": "assistant", "content": blocks or ""})
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": draw(WORDS)}
            for block in draw(st.permutations(blocks))
            if block["type"] == "tool_use"
        ]
        if draw(st.booleans()):
            results.append({"type": "text", "text": draw(WORDS)})
        if draw(st.booleans()) and results:
            self.turns += [{"role": "user", "content": [result]} for result in results]
        else:
            self.turns.append({"role": "user", "content": results or "on"})


class ResponsesClient:
    """The same for items; it may ask by previous response, drop ids, and send results between calls."""

    dialect: Dialect = OpenAIResponses()

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.items: list[Any] = [{"role": "user", "content": "go"}]

    def body(self) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": t.name, "description": t.description, "parameters": t.parameters}
            for t in TOOLS
        ]
        return {"input": json.loads(json.dumps(self.items)), "tools": tools, "store": False}

    def hear(self, events: list[dict[str, Any]]) -> None:
        self.read({"output": [e["item"] for e in events if e["type"] == "response.output_item.done"]})

    def read(self, whole: dict[str, Any]) -> None:
        draw = self.data.draw
        items = json.loads(json.dumps(whole["output"]))
        if draw(st.booleans()):
            items = [item for item in items if item["type"] != "reasoning"]
        no_ids = draw(st.booleans())
        results = []
        for item in items:
            if no_ids:
                del item["id"]
            if item["type"] == "reasoning" and draw(st.booleans()):
                item["content"] = None
            if item["type"] == "function_call":
                if draw(st.booleans()):
                    item["arguments"] = json.dumps(_parsed(item["arguments"], {}), indent=1)
                output = {"type": "function_call_output", "call_id": item["call_id"], "output": draw(WORDS)}
                results.append(output)
        if draw(st.booleans()):
            calls = [item for item in items if item["type"] == "function_call"]
            self.items += [item for item in items if item["type"] != "function_call"]
            self.items += [entry for pair in zip(calls, results, strict=True) for entry in pair]
        else:
            self.items += items + results
        if not results or draw(st.booleans()):
            self.items.append({"role": "user", "content": draw(WORDS)})


def _parsed(text: str, otherwise: Any) -> Any:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return otherwise
    return value if isinstance(value, dict) else otherwise


def _events(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(b"data: ")) for line in data.split(b"\n") if line.startswith(b"data: ")]


MALFORMED = ['{"name": "bash", "arguments": {"a": ', '{"name": "bash", "arguments": [1]}', "ls"]


@pytest.mark.parametrize("client_of", [AnthropicClient, ResponsesClient])
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_every_turn_of_any_client_continues_the_call_before_it(client_of: Any, data: st.DataObject) -> None:
    rendering = family()
    client, tree = client_of(data), CallTree()
    before = np.empty(0, np.int32)
    for turn in range(data.draw(st.integers(2, 4))):
        ask = client.dialect.read(client.body())
        prompt = compose(tree, rendering, in_call_order(ask.messages), ask.tools)
        assert prompt.how == ("continued" if turn else "root")
        assert np.array_equal(prompt.ids[: len(before)], before)
        completion = _completion(data, ask.messages)
        mint = Mint()
        parser = rendering.parser(prompt.ids, ask.tools)
        deltas: list[Delta] = []
        for at in range(0, len(completion), 7):
            deltas += parser.feed(completion[at : at + 7])
        reply = parser.finish("stop")
        deltas += reply.tail
        calls = tuple(replace(c, id=mint.call_id(i)) for i, c in enumerate(reply.message.tool_calls))
        message = replace(reply.message, tool_calls=calls, mark=mint.mark)
        prompt.enter(tree, completion, [-0.5] * len(completion), "stop", message)
        before = np.concatenate([prompt.ids, np.asarray(completion, np.int32)])
        writer, usage = client.dialect.writer(ask, mint, "policy", 0), Usage(len(prompt.ids), len(completion))
        if data.draw(st.booleans()):
            stream = writer.opening(len(prompt.ids)) + writer.deltas(deltas) + writer.closing("stop", usage)
            client.hear(_events(stream))
        else:
            client.read(json.loads(json.dumps(writer.whole(message, "stop", usage), allow_nan=False)))
    parts = segments(tree)
    assert not parts.dropped and len(parts.segments) == 1
    assert parts.segments[0].sampled == sum(len(call.completion_ids) for call in tree)


def _completion(data: st.DataObject, messages: tuple[Message, ...]) -> list[int]:
    """A reply that says something: well-formed, or with a call that cannot be read."""
    if data.draw(st.integers(0, 3)) == 0:
        text = tokenizer().encode(data.draw(st.sampled_from(MALFORMED)))
        return [mark("<tool_call>"), *text, mark("</tool_call>"), mark("<|im_end|>")]
    reply = data.draw(replies("qwen3").filter(lambda r: bool(r.content or r.tool_calls)))
    return family().encode_reply(messages[:1], reply, TOOLS)
