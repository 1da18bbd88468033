"""OpenAI Responses on the wire's own terms: items read, events and errors written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.proxy.dialect import Mint, Problem, Usage
from lego.proxy.openai_responses import OpenAIResponses
from lego.proxy.rules import CallRules
from lego.proxy.seal import seal, unseal
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, TextDelta, ThinkingDelta

RESPONSES = OpenAIResponses()


def read(given: Any, **body: Any) -> Any:
    return RESPONSES.read({"model": "m", "input": given, **body})


def called(call_id: str, arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "bash", "arguments": arguments}


def result(call_id: str, output: Any = "out") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **more}


def events(data: bytes) -> list[dict[str, Any]]:
    out = []
    for block in data.decode().split("\n\n"):
        if block:
            kind, text = block.split("\n")
            event = json.loads(text.removeprefix("data: "))
            assert kind == f"event: {event['type']}"
            out.append(event)
    return out


def test_input_may_be_a_text_or_items_with_instructions_before() -> None:
    ask = read("hi", instructions="Be brief.", store=False)
    assert ask.messages == (Message("system", "Be brief."), Message("user", "hi"))
    assert (ask.own, ask.previous, ask.remember) == (1, None, False)
    items = [
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": t} for t in "ab"]},
    ]
    ask = read(items, previous_response_id="resp_1")
    assert ask.messages == (Message("system", "d"), Message("user", "a\nb"))
    assert (ask.own, ask.previous, ask.remember) == (0, "resp_1", True)


def test_the_items_of_one_reply_are_one_message() -> None:
    mint = Mint()
    one, two = mint.call_id(0), mint.call_id(1)
    thought = {"type": "reasoning", "summary": [], "encrypted_content": seal(mint.mark, "hm"), "content": None}
    calls = (ToolCall(one, "bash", '{"a":1}'), ToolCall(two, "bash", "{}"))
    whole = Message("assistant", "I look", "hm", calls, mark=mint.mark)
    outs = [Message("tool", "out", tool_call_id=i) for i in (one, two)]
    head = [thought, assistant("I look")]
    assert list(read([*head, called(one, '{"a":1}'), called(two), result(one), result(two)]).messages) == [whole, *outs]
    interleaved = read([*head, called(one, '{"a":1}'), result(one), called(two), result(two)])
    assert list(interleaved.messages) == [whole, *outs]


def test_the_items_of_two_replies_are_two_messages() -> None:
    first, second = Mint(), Mint()
    ask = read(
        [assistant("a", id=first.id("msg")), assistant("b", id=second.id("msg")), assistant("c"), assistant("d")]
    )
    assert [(m.content, m.mark) for m in ask.messages] == [
        ("a", first.mark), ("b", second.mark), ("c", None), ("d", None),
    ]  # fmt: skip
    left_over = {"type": "reasoning", "summary": [], "id": first.id("rs"), "content": []}
    again = {"type": "reasoning", "summary": [], "id": second.id("rs")}
    ask = read([left_over, again, called(second.call_id(0)), result(second.call_id(0)), called("x"), result("x")])
    assert [m.mark for m in ask.messages] == [first.mark, second.mark, None, None, None]
    assert [len(m.tool_calls) for m in ask.messages] == [0, 1, 0, 1, 0]


def test_reasoning_that_is_not_ours_is_what_it_shows() -> None:
    shown = [{"type": "reasoning_text", "text": "a"}]
    summary = [{"type": "summary_text", "text": "b"}]
    item = {"type": "reasoning", "id": "rs_x", "content": shown, "summary": summary, "encrypted_content": "gAAAA"}
    assert read([item]).messages == (Message("assistant", "", "a\nb"),)


@given(st.text(alphabet="0123456789abcdef", min_size=24, max_size=24), st.text())
def test_what_is_sealed_comes_back(mark: str, text: str) -> None:
    assert unseal(seal(mark, text)) == (mark, text)


@given(st.binary(max_size=80) | st.text().map(str.encode), st.integers(0, 40))
def test_what_is_not_sealed_here_is_nothing(data: bytes, at: int) -> None:
    assert unseal(data.decode("latin-1")) is None
    sealed = seal("0" * 24, "thinking")
    other = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
    assert unseal(other) in (None, ("0" * 24, "thinking"))


def test_functions_are_offered_and_other_tools_said_to_be_left_out() -> None:
    function = {"type": "function", "name": "bash", "description": "run", "parameters": {"type": "object"}}
    ask = read("hi", tools=[function, {"type": "web_search"}, {"type": "custom", "name": "p"}], max_output_tokens=5)
    assert ask.tools == (Tool("bash", "run", {"type": "object"}),)
    assert ask.wishes == {"max_output_tokens": 5, "tools": ["web_search", "custom"]}


def test_a_request_for_json_can_be_declared_auxiliary() -> None:
    ask = read("hi", text={"format": {"type": "json_schema"}})
    assert CallRules(auxiliary=({"output_format": "json_schema"},)).kind({}, ask.messages, 0, ask.wishes) == "auxiliary"


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ([], "input"),
        ({}, "input"),
        (["x"], "input[0]"),
        ([{"role": "king", "content": ""}], "input[0].role"),
        ([{"role": "user", "content": 7}], "input[0].content"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}], "input[0].content.0"),
        ([{"type": "item_reference", "id": "x"}], "input[0].type"),
        ([{"type": "function_call", "call_id": "c"}], "input[0].name"),
        ([result("c", [{"type": "input_image"}])], "input[0].output.0"),
    ],
)
def test_what_cannot_be_read_is_refused_by_place(given: Any, where: str) -> None:
    with pytest.raises(Problem) as refused:
        read(given)
    error = RESPONSES.problem(refused.value)["error"]
    assert (refused.value.status, error["param"], error["type"]) == (400, where, "invalid_request_error")


@pytest.mark.parametrize("body", [{"conversation": "conv_1"}, {"prompt": {"id": "pmpt_1"}}])
def test_what_only_openai_holds_is_refused_by_name(body: dict[str, Any]) -> None:
    with pytest.raises(Problem) as refused:
        read("hi", **body)
    assert RESPONSES.problem(refused.value)["error"]["param"] == next(iter(body))


def test_context_overflow_has_the_code_that_clients_know() -> None:
    error = RESPONSES.problem(Problem("context_overflow", "", limit=4096, asked=5000))["error"]
    assert error["code"] == "context_length_exceeded" and "exceeds the context window" in error["message"]


def test_a_stream_is_items_one_after_another_numbered() -> None:
    mint = Mint()
    writer = RESPONSES.writer(read("hi"), mint, "policy", 7)
    data = writer.opening(42)
    data += writer.deltas([ThinkingDelta("h"), ThinkingDelta("m\u2028"), TextDelta('"é'), CallStart(0, "bash")])
    data += writer.deltas([CallArguments(0, '{"a": '), CallArguments(0, "1}"), CallEnd(0)])
    said = events(data + writer.closing("stop", Usage(42, 5)))
    assert [e["sequence_number"] for e in said] == list(range(len(said)))
    assert [e["type"].removeprefix("response.") for e in said] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    reasoning, message, call = said[-1]["response"]["output"]
    assert [e["item"] for e in said if e["type"].endswith("item.done")] == [reasoning, message, call]
    assert unseal(reasoning["encrypted_content"]) == (mint.mark, "hm\u2028")
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm\u2028"}]
    assert message["content"][0]["text"] == '"é' and message["status"] == "completed"
    assert (call["call_id"], call["arguments"]) == (mint.call_id(0), '{"a": 1}')
    assert [e["output_index"] for e in said if "output_index" in e] == [0] * 7 + [1] * 6 + [2] * 5
    assert {e["item_id"] for e in said if "item_id" in e} == {i["id"] for i in (reasoning, message, call)}
    assert said[-1]["response"]["usage"]["total_tokens"] == 47


def test_streamed_and_whole_say_the_same() -> None:
    mint = Mint()
    calls = (ToolCall(mint.call_id(0), "bash", '{"a": 1}'), ToolCall(mint.call_id(1), "x", ""))
    reply = Message("assistant", "I look", "hm", calls)
    for finish in ("stop", "length"):
        whole = RESPONSES.writer(read("hi"), mint, "policy", 7).whole(reply, finish, Usage(1, 2))  # type: ignore[arg-type]
        writer = RESPONSES.writer(read("hi"), mint, "policy", 7)
        writer.deltas([ThinkingDelta("hm"), TextDelta("I look"), CallStart(0, "bash"), CallArguments(0, '{"a": 1}')])
        writer.deltas([CallEnd(0), CallStart(1, "x")])
        if finish == "stop":
            writer.deltas([CallEnd(1)])
        assert events(writer.closing(finish, Usage(1, 2)))[-1]["response"] == whole  # type: ignore[arg-type]
    assert whole["status"] == "incomplete" and whole["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_stream_that_fails_says_so() -> None:
    writer = RESPONSES.writer(read("hi"), Mint(), "policy", 7)
    (event,) = events(writer.failure(Problem("engine_fault", "CUDA is gone")))
    assert event["type"] == "response.failed" and event["response"]["status"] == "failed"
    assert event["response"]["error"] == {"code": "server_error", "message": "CUDA is gone"}
