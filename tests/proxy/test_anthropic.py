"""Anthropic Messages on the wire's own terms: requests read, replies and errors written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lego.proxy.anthropic import Anthropic
from lego.proxy.dialect import Mint, Problem, Usage
from lego.proxy.reading import in_call_order
from lego.proxy.rules import CallRules
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, TextDelta, ThinkingDelta

MESSAGES = Anthropic()
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}


def read(*turns: Any, **body: Any) -> Any:
    return MESSAGES.read({"model": "m", "max_tokens": 9, "messages": [*turns], **body})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def events(data: bytes) -> list[dict[str, Any]]:
    out = []
    for block in data.decode().split("\n\n"):
        if block:
            kind, text = block.split("\n")
            event = json.loads(text.removeprefix("data: "))
            assert kind == f"event: {event['type']}"
            out.append(event)
    return out


def test_system_may_be_a_text_or_a_list_and_may_stand_in_the_middle() -> None:
    one = read(user("hi"), system="a\nb")
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert (
        read(user("hi"), system=blocks).messages == one.messages == (Message("system", "a\nb"), Message("user", "hi"))
    )
    middle = {"role": "system", "content": [{"type": "text", "text": "remember"}]}
    assert read(user("hi"), middle).messages[1] == Message("system", "remember")


def test_an_assistant_turn_has_text_thinking_and_calls() -> None:
    mint = Mint()
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": mint.id("sig")},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "c1", "name": "bash", "input": {"é": 1}, "cache_control": {"type": "ephemeral"}},
        {"type": "tool_use", "id": "c2", "name": "bash", "input": {"__unparsedToolInput": '{"a": '}},
    ]
    calls = (ToolCall("c1", "bash", '{"é": 1}'), ToolCall("c2", "bash", '{"a": '))
    turn = {"role": "assistant", "content": blocks}
    assert read(user("hi"), turn).messages[1] == Message("assistant", "I look", "hm", calls, mark=mint.mark)
    foreign = {**blocks[0], "signature": "EqQBCgIYAhIkYjM"}
    assert read(user("hi"), {"role": "assistant", "content": [foreign]}).messages[1] == Message("assistant", "", "hm")


def test_results_and_remarks_of_one_turn_are_messages_of_their_own() -> None:
    turn = user(
        [
            {"type": "tool_result", "tool_use_id": "c2", "content": [{"type": "text", "text": "two"}]},
            {"type": "tool_result", "tool_use_id": "c1", "is_error": True},
            {"type": "text", "text": "note"},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "paper"}},
        ]
    )
    assert read(turn).messages == (
        Message("tool", "two", tool_call_id="c2"),
        Message("tool", "", tool_call_id="c1"),
        Message("user", "note\npaper"),
    )


def test_results_stand_in_the_order_of_their_calls() -> None:
    calls = Message("assistant", tool_calls=(ToolCall("c1", "a", ""), ToolCall("c2", "b", "")))
    one, two = Message("tool", "1", tool_call_id="c1"), Message("tool", "2", tool_call_id="c2")
    lost, note = Message("tool", "?", tool_call_id="c9"), Message("user", "note")
    assert in_call_order([note, calls, lost, two, note, one]) == (note, calls, one, two, note, lost)


def test_tools_of_anthropic_itself_are_left_out_and_said_so() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [{"name": "bash", "description": "run", "input_schema": schema}, {"type": "web_search_1", "name": "web"}]
    ask = read(user("hi"), tools=tools, temperature=0.2, thinking={"type": "adaptive"}, stream=True)
    assert ask.tools == (Tool("bash", "run", schema),)
    assert ask.wishes == {
        "max_tokens": 9, "temperature": 0.2, "thinking": {"type": "adaptive"}, "tools": ["web_search_1"],
    }  # fmt: skip
    assert ask.stream


def test_a_request_for_a_json_title_can_be_declared_auxiliary() -> None:
    ask = read(user("hi"), output_config={"format": {"type": "json_schema", "schema": {}}})
    rules = CallRules(auxiliary=({"output_format": "json_schema"},))
    assert rules.kind({}, ask.messages, 0, ask.wishes) == "auxiliary"
    assert rules.kind({}, ask.messages, 0, read(user("hi"), output_config={"effort": "low"}).wishes) == "main"


@pytest.mark.parametrize(
    ("turn", "where"),
    [
        ("hi", "messages.0"),
        ({"role": "tool", "content": "x"}, "messages.0.role"),
        (user(7), "messages.0.content"),
        (user([IMAGE]), "messages.0.content.0"),
        (user([{"type": "document", "source": {"type": "base64", "data": "AA=="}}]), "messages.0.content.0"),
        (user([{"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}]), "messages.0.content.0.content.0"),
        (user(["x"]), "messages.0.content.0"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "c"}]}, "messages.0.content.0.name"),
        ({"role": "assistant", "content": [{"type": "thinking"}]}, "messages.0.content.0"),
    ],
)
def test_what_cannot_be_read_is_refused_by_place(turn: Any, where: str) -> None:
    with pytest.raises(Problem) as refused:
        read(turn)
    assert refused.value.status == 400
    said = MESSAGES.problem(refused.value)
    assert said["type"] == "error" and said["error"]["type"] == "invalid_request_error"
    assert said["error"]["message"].startswith(f"{where}: ")


@pytest.mark.parametrize(
    "body",
    [
        {"messages": []},
        {"messages": {}},
        {"tools": [{"input_schema": {}}]},
        {"tools": [{"name": "x"}]},
        {"system": [IMAGE]},
    ],
)
def test_bodies_that_cannot_be_read_are_refused(body: dict[str, Any]) -> None:
    with pytest.raises(Problem, match="messages|tools|system"):
        MESSAGES.read({"messages": [user("hi")], **body})


def test_context_overflow_is_worded_as_claude_code_knows_it() -> None:
    error = MESSAGES.problem(Problem("context_overflow", "", limit=4096, asked=4096))["error"]
    assert error == {"type": "invalid_request_error", "message": "prompt is too long: 4096 tokens > 4095 maximum"}


@pytest.mark.parametrize(
    ("kind", "status", "said"),
    [
        ("wrong_token", 401, "authentication_error"),
        ("not_found", 404, "not_found_error"),
        ("too_large", 413, "request_too_large"),
        ("engine_fault", 500, "api_error"),
        ("cap", 400, "invalid_request_error"),
    ],
)
def test_errors_have_the_types_that_tell_clients_what_to_do(kind: Any, status: int, said: str) -> None:
    problem = Problem(kind, "why")
    assert (problem.status, MESSAGES.problem(problem)["error"]) == (status, {"type": said, "message": "why"})


def test_a_stream_is_blocks_one_after_another() -> None:
    mint = Mint()
    writer = MESSAGES.writer(read(user("hi")), mint, "policy", 7)
    start, ping = events(writer.opening(42))
    assert start["message"]["usage"]["input_tokens"] == 42 and start["message"]["stop_reason"] is None
    assert ping == {"type": "ping"}
    data = writer.deltas([ThinkingDelta("h"), ThinkingDelta("m\u2028"), TextDelta('"é'), CallStart(0, "bash")])
    data += writer.deltas([CallArguments(0, '{"a": '), CallArguments(0, "1}"), CallEnd(0), CallStart(1, "x")])
    said = events(data + writer.closing("stop", Usage(42, 5)))
    shapes = [(e["type"].removeprefix("content_block_"), e.get("index")) for e in said]
    assert shapes == [
        ("start", 0), ("delta", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("delta", 2), ("stop", 2),
        ("start", 3), ("stop", 3),
        ("message_delta", None), ("message_stop", None),
    ]  # fmt: skip
    assert said[3]["delta"] == {"type": "signature_delta", "signature": mint.id("sig")}
    assert said[8]["content_block"] == {"type": "tool_use", "id": mint.call_id(0), "name": "bash", "input": {}}
    assert "".join(e["delta"]["partial_json"] for e in said[9:11]) == '{"a": 1}'
    assert said[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert (said[-2]["usage"]["input_tokens"], said[-2]["usage"]["output_tokens"]) == (42, 5)


def test_a_cut_stream_ends_its_block_and_says_why() -> None:
    writer = MESSAGES.writer(read(user("hi")), Mint(), "policy", 7)
    writer.deltas([CallStart(0, "bash"), CallArguments(0, '{"a')])
    said = events(writer.closing("length", Usage(1, 2)))
    assert [e["type"] for e in said] == ["content_block_stop", "message_delta", "message_stop"]
    assert said[1]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", "ls", '{"a": NaN}', "[" * 5000])
def test_input_that_is_no_object_goes_out_and_comes_back_as_it_is(arguments: str) -> None:
    reply = Message("assistant", "", None, (ToolCall("c", "bash", arguments),))
    body = MESSAGES.writer(read(user("hi")), Mint(), "policy", 7).whole(reply, "stop", Usage(1, 2))
    turn = {"role": "assistant", "content": json.loads(json.dumps(body["content"]))}
    assert read(user("hi"), turn).messages[1].tool_calls == reply.tool_calls
