"""Streaming parsers: what they say is what the family's own parser reads from the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.trajectory.messages import Message
from lego.trajectory.parse import (
    CallArguments,
    CallEnd,
    CallStart,
    Delta,
    Reply,
    TextDelta,
    ThinkingDelta,
)
from tests.trajectory._support import FAMILIES, TOOLS, mark, rendering, replies, tokenizer


def stream(family: str, ids: list[int], cuts: list[int]) -> tuple[list[Delta], Reply]:
    """Feed `ids` cut at `cuts`; all deltas, and the reply."""
    parser = rendering(family).parser([], TOOLS)
    deltas: list[Delta] = []
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    for begin, end in zip(edges, edges[1:], strict=False):
        deltas += parser.feed(ids[begin:end])
    reply = parser.finish("stop")
    return [*deltas, *reply.tail], reply


def total(deltas: list[Delta]) -> tuple[str, str, list[tuple[str, str]], int]:
    names: list[str] = []
    arguments: list[str] = []
    text = thinking = ""
    ended = 0
    for delta in deltas:
        match delta:
            case TextDelta():
                text += delta.text
            case ThinkingDelta():
                thinking += delta.text
            case CallStart():
                assert delta.index == len(names) == ended
                names.append(delta.name)
                arguments.append("")
            case CallArguments():
                assert delta.index == len(names) - 1
                arguments[delta.index] += delta.text
            case CallEnd():
                assert delta.index == ended
                ended += 1
    return text, thinking, list(zip(names, arguments, strict=True)), ended


def fragments() -> st.SearchStrategy[list[int]]:
    """Completions a policy might sample: marks and text in any order, sound calls among them."""
    texts = st.sampled_from(
        [
            "hello",
            " \n",
            "\n",
            "bash\nls -la\n",
            "bash\n",
            "\u4f60\U0001f600",
            "</thin",
            "<tool_call",
            '"}',
            "[1, 2]",
            '\n{"name": "bash", "arguments": {"command": "ls"}}\n',
            '{"arguments": {"a": [1, "}"]}, "name": "edit"}',
            '{"name": "x", "arguments": {"a": 1}',
            '{"name": "", "arguments": {}}',
            '{"name": "bash"}',
            '{"name": "y", "arguments": "text"}',
            '{"name": "z", "arguments": null }',
            '{"name": "z", "arguments": 12}',
            '{"name": "q", "arguments": {}, "id": 3}',
        ]
    )
    pieces = texts.map(lambda text: tokenizer().encode(text))
    marks = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_call>", "</tool_call>"])
    any_id = st.integers(0, len(tokenizer()) - 1).filter(lambda i: i != mark("<|im_start|>")).map(lambda i: [i])
    return st.lists(pieces | marks.map(lambda m: [mark(m)]) | any_id, max_size=12).map(lambda parts: sum(parts, []))


CUTS = st.lists(st.integers(0, 10_000), max_size=40)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_equal_to_the_whole_parse(family: str, data: st.DataObject) -> None:
    ids = data.draw(fragments())
    deltas, reply = stream(family, ids, data.draw(CUTS))
    expected: Any = rendering(family).renderer.parse_response(ids, tools=None, prompt_ids=None)
    text, thinking, calls, ended = total(deltas)
    assert (text, thinking or None) == (reply.message.content, reply.message.reasoning)
    assert calls == [(call.name, call.arguments) for call in reply.message.tool_calls]
    assert ended == len(calls)
    assert thinking.strip() == (expected.reasoning_content or "").strip()
    sound = [call for call in expected.tool_calls if call.status == "ok"]
    assert len(reply.malformed) == len(expected.tool_calls) - len(sound)
    if not reply.malformed:
        assert text.strip() == expected.content.strip()
        assert [(name, json.loads(arguments)) for name, arguments in calls] == [(c.name, c.arguments) for c in sound]


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_cuts_change_nothing(family: str, data: st.DataObject) -> None:
    ids = data.draw(fragments())
    one_by_one, reply = stream(family, ids, list(range(len(ids))))
    at_once, other = stream(family, ids, [])
    assert total(one_by_one) == total(at_once)
    assert (reply.message, reply.malformed) == (other.message, other.malformed)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_reads_back_what_the_family_says(family: str, data: st.DataObject) -> None:
    said = data.draw(replies(family))
    ids = rendering(family).encode_reply([Message("user", "go")], said, () if family == "chatml" else TOOLS)
    _, reply = stream(family, ids, data.draw(CUTS))
    assert reply.malformed == ()
    exact = family != "qwen3"
    assert reply.message.content == (said.content if exact else said.content.strip())
    assert (reply.message.reasoning or "") == ((said.reasoning or "") if exact else (said.reasoning or "").strip())
    assert [(c.name, json.loads(c.arguments)) for c in reply.message.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in said.tool_calls
    ]


def test_arguments_stream_as_sampled() -> None:
    ids = [mark("<tool_call>"), *tokenizer().encode('\n{"name": "bash", "arguments": {"command":   "ls')]
    parser = rendering("qwen3").parser([], TOOLS)
    assert parser.feed(ids) == [CallStart(0, "bash"), CallArguments(0, '{"command":   "ls')]
    assert parser.feed(tokenizer().encode(' -la"}}\n')) == [CallArguments(0, ' -la"}')]
    assert parser.feed([mark("</tool_call>")]) == [CallEnd(0)]


def test_a_character_of_several_ids_comes_whole() -> None:
    ids = tokenizer().encode("a\U0001f4a1b")
    assert len(ids) > 3
    parser = rendering("tiny-chatml").parser([], TOOLS)
    said = [parser.feed([token]) for token in ids]
    assert "".join(delta.text for deltas in said for delta in deltas if isinstance(delta, TextDelta)) == "a\U0001f4a1b"
    assert not any("\ufffd" in delta.text for deltas in said for delta in deltas if isinstance(delta, TextDelta))


@pytest.mark.parametrize(
    ("family", "text", "content", "calls"),
    [
        ("qwen3", "<tool_call>\nnot json\n</tool_call>", "<tool_call>\nnot json\n</tool_call>", []),
        ("qwen3", '<tool_call>\n{"name": "ba', '<tool_call>\n{"name": "ba', []),
        (
            "qwen3",
            '<tool_call>{"name": "bash", "arguments": {"command": "a\nb"}}</tool_call>',
            "",
            [("bash", '{"command": "a\nb"}')],
        ),
        ("qwen3", '<tool_call>{"name": "bash", "arguments": {"comm', "", [("bash", '{"comm')]),
        ("tiny-chatml", "<tool_call>\nls</tool_call>", "<tool_call>\nls</tool_call>", []),
        ("tiny-chatml", "<tool_call>bash\ncat f", "", [("bash", '{"command": "cat f')]),
        ("tiny-chatml", "<tool_call>ba", "<tool_call>ba", []),
    ],
)
def test_malformed_calls_reach_the_harness(family: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    _, reply = stream(family, tokenizer().encode(text), [3])
    assert reply.message.content == content
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls
    assert len(reply.malformed) == 1


def test_thinking_opened_by_the_prompt() -> None:
    prompt = [mark("<|im_start|>"), *tokenizer().encode("assistant\n"), mark("<think>"), *tokenizer().encode("\n")]
    parser = rendering("qwen3").parser(prompt, TOOLS)
    parser.feed(tokenizer().encode("why\n</think>\n\nso"))
    assert parser.finish("stop").message == Message("assistant", "so", "why")


def test_a_call_inside_thinking_waits_for_it_to_close() -> None:
    drafted = tokenizer().encode('<think>a<tool_call>{"name": "bash", "arguments": {}}</tool_call>b')
    parser = rendering("qwen3").parser([], TOOLS)
    assert [delta for delta in parser.feed(drafted) if not isinstance(delta, ThinkingDelta)] == []
    parser.feed(tokenizer().encode("</think>done"))
    assert parser.finish("stop").message.tool_calls == ()
    parser = rendering("qwen3").parser([], TOOLS)
    parser.feed(drafted)
    assert [call.name for call in parser.finish("stop").message.tool_calls] == ["bash"]
