from __future__ import annotations

import json
from typing import Any

import pytest

from lego.proxy.dialect import Mint, Problem, Usage
from lego.proxy.openai_chat import OpenAIChat
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.parse import CallArguments, CallStart, TextDelta, ThinkingDelta

CHAT = OpenAIChat()


def read(**body: Any) -> Any:
    return CHAT.read({"model": "m", "messages": [{"role": "user", "content": "hi"}], **body})


def events(data: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in data.split(b"\n\n") if line]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def test_every_kind_of_message_is_read() -> None:
    ask = read(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "out"},
        ]
    )
    assert ask.messages == (
        Message("system", "be brief"),
        Message("user", "a\nb"),
        Message("assistant", "", "hm", (ToolCall("c1", "bash", '{"x": 1}'),)),
        Message("tool", "out", tool_call_id="c1"),
    )


def test_thinking_comes_back_under_either_name() -> None:
    turns = [
        {"role": "assistant", "content": "a", "reasoning": "hm"},
        {"role": "assistant", "content": "a", "reasoning_content": None, "reasoning": "hm"},
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
    ]
    assert {message.reasoning for message in read(messages=turns).messages} == {"hm"}


def test_arguments_sent_as_an_object_become_json() -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": {"é": 1}}}
    ask = read(messages=[{"role": "assistant", "tool_calls": [call]}])
    assert ask.messages[0].tool_calls[0].arguments == '{"é": 1}'


def test_tools_wishes_and_stream_options_are_read() -> None:
    tools = [{"type": "function", "function": {"name": "bash", "description": "run", "parameters": {"type": "object"}}}]
    ask = read(tools=tools, temperature=0.2, stream=True, stream_options={"include_usage": True}, top_p=None)
    assert ask.tools == (Tool("bash", "run", {"type": "object"}),)
    assert ask.wishes == {"temperature": 0.2}
    assert ask.stream and ask.stream_usage


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "messages[0].tool_calls[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"n": 2}, "n"),
        ({"functions": [{"name": "f"}]}, "functions"),
        (
            {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": ""}}]},
            "messages[0].function_call",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(Problem) as refused:
        read(**body)
    assert refused.value.status == 400
    assert CHAT.problem(refused.value)["error"]["param"] == param


def test_context_overflow_is_worded_as_openai_does() -> None:
    error = CHAT.problem(Problem("context_overflow", "", limit=4096, asked=5000))["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("This model's maximum context length is 4096 tokens. However, your messages")
    assert "5000 tokens" in error["message"]


def test_streamed_deltas_carry_text_thinking_and_calls() -> None:
    mint = Mint()
    writer = CHAT.writer(read(stream=True), mint, "policy", 7)
    assert events(writer.opening(1))[0]["choices"][0]["delta"]["role"] == "assistant"
    calls = [CallStart(0, "bash"), CallArguments(0, "{"), CallStart(1, "x")]
    said = events(writer.deltas([ThinkingDelta("h\u2028m"), TextDelta('"é'), *calls]))
    deltas = [event["choices"][0]["delta"] for event in said]
    assert deltas[0] == {"reasoning_content": "h\u2028m"}
    assert deltas[1] == {"content": '"é'}
    first = deltas[2]["tool_calls"][0]
    assert first["id"] == mint.call_id(0) and first["function"] == {"name": "bash", "arguments": ""}
    assert deltas[3]["tool_calls"] == [{"index": 0, "function": {"arguments": "{"}}]
    assert deltas[4]["tool_calls"][0]["id"] == mint.call_id(1) != mint.call_id(0)


@pytest.mark.parametrize("usage_asked", [True, False])
def test_a_stream_closes_with_reason_usage_if_asked_and_done(usage_asked: bool) -> None:
    writer = CHAT.writer(read(stream=True, stream_options={"include_usage": usage_asked}), Mint(), "policy", 7)
    data = writer.closing("length", Usage(10, 3))
    assert data.endswith(b"data: [DONE]\n\n")
    said = events(data)
    assert said[0]["choices"][0]["finish_reason"] == "length"
    assert [e["usage"] for e in said if e.get("usage")] == (
        [{"prompt_tokens": 10, "completion_tokens": 3, "total_tokens": 13}] if usage_asked else []
    )


def test_a_whole_reply_has_the_minted_ids_and_says_why_it_stopped() -> None:
    reply = Message("assistant", "", "hm", (ToolCall("call_1", "bash", "{}"),))
    body = CHAT.writer(read(), Mint(), "policy", 7).whole(reply, "stop", Usage(1, 2))
    choice = body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0] == {
        "id": "call_1",
        "type": "function",
        "function": {"name": "bash", "arguments": "{}"},
    }
    assert choice["message"]["content"] is None and choice["message"]["reasoning_content"] == "hm"


def test_a_reply_cut_inside_a_call_says_length() -> None:
    reply = Message("assistant", "", None, (ToolCall("call_1", "bash", '{"a'),))
    body = CHAT.writer(read(), Mint(), "p", 7).whole(reply, "length", Usage(1, 2))
    assert body["choices"][0]["finish_reason"] == "length"
