"""Streaming parsers, family by family: what they say is what the family's own parser reads from the whole."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.trajectory.messages import Message
from lego.trajectory.parse import Delta, Reply
from lego.trajectory.turns import tool_dicts
from tests.trajectory.families._support import CASES, Case, any_id, examples, ids_of, rendering, replies, tools_of
from tests.trajectory.test_parse import total

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
CUTS = st.lists(st.integers(0, 10_000), max_size=40) | st.just(list(range(1000)))

JSON = (
    '{"name": "bash", "arguments": {"command": "ls\\n"}}',
    '{"name": "bash", "parameters": {"command": "a\nb"}}',
    '{"parameters": {"a": [1, "}"]}, "name": "edit"}',
    '{"name": "x", "arguments": {"a": 1}',
    '{"name": "", "arguments": {}}',
    '{"name": 5, "parameters": {}}',
    '{"name": "bash"}',
    '{"name": "z", "arguments": null }',
    '{"a": 1}',
    "[[[1]]]",
)
XML = (
    "<function=bash>\n",
    "<function=edit>\n<parameter=path>\n a \n</parameter>\n",
    "<parameter=command>\nls -la\nx\n</parameter>\n",
    "<parameter=count>\n12\n</parameter>",
    "<parameter=count>x</parameter>",
    '<parameter=other>\n{"a": [1]}\n</parameter>\n',
    "<parameter=path>\n",
    "</parameter>",
    "</function>\n",
    "<function=>",
    "</param",
)
HARMONY = (
    "assistant",
    "<|start|>assistant<|channel|>final<|message|>",
    "<|start|>assistant<|channel|>analysis<|message|>",
    "<|start|>assistant to=functions.bash<|channel|>commentary json<|message|>",
    "<|start|>assistant<|channel|>commentary to=functions.edit <|constrain|>json<|message|>",
    "<|start|>assistant<|channel|>commentary<|message|>",
    "<|start|>assistant to=functions.<|channel|>commentary<|message|>",
    "<|start|>assistant to=browser.open<|channel|>analysis<|message|>",
    "<|end|>",
    "<|channel|>",
    "<|message|>",
    '{"command": "ls"}',
    '{"command": "l',
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "function",
    'bash\n```json\n{"command": "ls"}\n```',
    'edit\n```json\n{\n "path": "```"\n}\n```\n',
    'bash\n{"a": 1}',
    "submit",
    "bash\n```js",
    "```",
)
TAGGED = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_call>", "</tool_call>")
TEXTS = ("hello", " \n", "\n", "\u4f60\U0001f600", "</thin", "<thi", "<tool_call", '"}', "{", "}", "bash\nls -la\n")


def grammar(case: Case) -> tuple[str, ...]:
    """The pieces that this family's replies are made of."""
    by_family: dict[str, tuple[str, ...]] = {
        "qwen3": (*TAGGED, *JSON),
        "llama-3": JSON,
        "gpt-oss": HARMONY,
        "deepseek-v3": (*DEEPSEEK, "<think>", "</think>"),
        "tiny-chatml": (*TAGGED, "bash\n", "edit\na", "submit"),
    }
    return by_family.get(case.family, (*TAGGED, *XML) if case.xml else ())


OBJECTS = ('{"command": "ls"}', '{"a": [1, {"b": "}"}], "c": null}', "{}", ' {"x":\n"\u00e9 \\" `" } ', '{"a": 1', "no")
VALUES = st.sampled_from(OBJECTS)
NAMES = st.sampled_from(["bash", "edit", "submit", "nosuch"])


@st.composite
def said_calls(draw: st.DrawFn, case: Case) -> list[str]:
    """The pieces of a reply as the family writes it: thinking, text, calls."""
    text = st.sampled_from(["", "I look.\n\n", " a\u4f60\U0001f600 "])
    if case.family == "llama-3":
        both = ("parameters", ', "arguments": {"z": 0}')
        key, more = draw(st.sampled_from([("parameters", ""), ("arguments", ""), both]))
        return ["\n", f'{{"name": "{draw(NAMES)}", "{key}": ', draw(VALUES), more + "}", "\n"]
    if case.family == "gpt-oss":
        final = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", draw(text)]
        to = draw(
            st.sampled_from([" to=functions.{}<|channel|>commentary json", "<|channel|>commentary to=functions.{}"])
        )
        call = ["<|start|>", "assistant", to.format(draw(NAMES)), "<|message|>", draw(VALUES), "<|call|>"]
        return [draw(text), "<|end|>", *draw(st.sampled_from([final, call]))]
    pieces = ["<think>", draw(text), "</think>"] if draw(st.booleans()) and case.family != "qwen3-coder" else []
    pieces.append(draw(text))
    calls = [piece for _ in range(draw(st.integers(0, 2))) for piece in draw(said_call(case))]
    if case.family == "deepseek-v3" and calls:
        return [*pieces, "<｜tool▁calls▁begin｜>", *calls, "<｜tool▁calls▁end｜>"]
    return [*pieces, *calls]


@st.composite
def said_call(draw: st.DrawFn, case: Case) -> list[str]:
    if case.family == "deepseek-v3":
        body = ["```json\n", draw(VALUES), "\n", "```"] if draw(st.integers(0, 3)) else [draw(VALUES)]
        head = ["<｜tool▁call▁begin｜>", "function", "<｜tool▁sep｜>", draw(NAMES), "\n"]
        return [*head, *body, "<｜tool▁call▁end｜>"]
    if case.family == "tiny-chatml":
        return ["<tool_call>", draw(NAMES), "\n", draw(st.sampled_from(["ls -la", "", "a\n"])), "</tool_call>"]
    if not case.xml:
        call = ['{"name": "', draw(NAMES), '", "arguments": ', draw(VALUES), "}"]
        return ["<tool_call>", "\n", *call, "\n", "</tool_call>"]
    parameters: list[str] = []
    for _ in range(draw(st.integers(0, 3))):
        key = draw(st.sampled_from(["command", "path", "count", "other"]))
        value = draw(st.sampled_from(["ls", " a\n\nb ", "", "12", "</", "<b>", '"q"', "[1]", "x</param", "<function"]))
        parameters += [f"<parameter={key}>", "\n", value, "\n", "</parameter>", "\n"]
    return ["<tool_call>", "\n", f"<function={draw(NAMES)}>", "\n", *parameters, "</function>", "\n", "</tool_call>"]


@st.composite
def near_calls(draw: st.DrawFn, case: Case) -> list[int]:
    """The same, whole or with a piece or two lost, doubled, or put where it does not belong."""
    pieces = draw(said_calls(case)) if case.calls else [draw(st.sampled_from(TEXTS))]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, len(pieces)))
        new = st.sampled_from([[], pieces[at : at + 1] * 2, *([piece] for piece in (*grammar(case), *TEXTS))])
        pieces[at : at + 1] = draw(new)
    ids = ids_of(case, "".join(pieces))
    return ids if draw(st.integers(0, 3)) else ids[: draw(st.integers(0, len(ids)))]


def fragments(case: Case) -> st.SearchStrategy[list[int]]:
    """Completions a policy might sample: calls, calls with something wrong, and marks and text in any order."""
    written = st.sampled_from(grammar(case) or TEXTS) | st.sampled_from(TEXTS)
    pieces = written.map(lambda text: ids_of(case, text)) | any_id(case).map(lambda i: [i])
    anything = st.lists(pieces, max_size=12).map(lambda parts: [token for part in parts for token in part])
    return near_calls(case) | near_calls(case) | anything


def prompt_of(case: Case) -> list[int]:
    return rendering(case).render([Message("user", "go")], tools_of(case))


def stream(case: Case, ids: list[int], cuts: list[int], finish: Any = "stop") -> tuple[list[Delta], Reply]:
    """Feed `ids` cut at `cuts`; all deltas, and the reply."""
    parser = rendering(case).parser(prompt_of(case), tools_of(case))
    deltas: list[Delta] = []
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    for begin, end in zip(edges, edges[1:], strict=False):
        deltas += parser.feed(ids[begin:end])
    reply = parser.finish(finish)
    return [*deltas, *reply.tail], reply


@each
@examples(60)
@given(data=st.data())
def test_equal_to_the_whole_parse(case: Case, data: st.DataObject) -> None:
    r = rendering(case)
    ids = data.draw(fragments(case)) + data.draw(st.sampled_from([[], [r.stop_ids[0]], [r.stop_ids[-1]]]))
    deltas, reply = stream(case, ids, data.draw(CUTS))
    expected: Any = r.renderer.parse_response(ids, tools=tool_dicts(tools_of(case)), prompt_ids=prompt_of(case))
    text, thinking, calls, ended = total(deltas)
    assert (text, thinking or None) == (reply.message.content, reply.message.reasoning)
    assert calls == [(call.name, call.arguments) for call in reply.message.tool_calls]
    assert ended == len(calls)
    assert thinking.strip() == (expected.reasoning_content or "").strip()
    sound = [(call.name, call.arguments) for call in expected.tool_calls if call.status == "ok"]
    assert reply.malformed or len(sound) == len(expected.tool_calls)
    if not reply.malformed:
        assert text.strip() == expected.content.strip()
        assert [(name, json.loads(arguments)) for name, arguments in calls] == sound


@each
@examples(30)
@given(data=st.data())
def test_cuts_change_nothing(case: Case, data: st.DataObject) -> None:
    ids = data.draw(fragments(case))
    one_by_one, reply = stream(case, ids, list(range(len(ids))))
    at_once, other = stream(case, ids, [])
    assert total(one_by_one) == total(at_once)
    assert (reply.message, reply.malformed) == (other.message, other.malformed)


@each
@examples(30)
@given(data=st.data())
def test_reads_back_what_the_family_says(case: Case, data: st.DataObject) -> None:
    said = data.draw(replies(case))
    ids = rendering(case).encode_reply([Message("user", "go")], said, tools_of(case))
    _, reply = stream(case, ids, data.draw(CUTS))
    assert reply.malformed == ()
    assert reply.message.content.strip() == said.content.strip()
    assert (reply.message.reasoning or "").strip() == (said.reasoning or "").strip()
    assert [(c.name, json.loads(c.arguments)) for c in reply.message.tool_calls] == [
        (c.name, json.loads(c.arguments)) for c in said.tool_calls
    ]


@each
@examples(30)
@given(data=st.data())
def test_nothing_that_can_be_sampled_raises(case: Case, data: st.DataObject) -> None:
    size: int = len(rendering(case).tokenizer)  # type: ignore[arg-type]
    anything = st.lists(st.integers(0, size - 1) | st.integers(max(0, size - 300), size - 1), max_size=20)
    ids = [token for part in data.draw(st.lists(fragments(case) | anything, max_size=3)) for token in part]
    _, reply = stream(case, ids, data.draw(CUTS), data.draw(st.sampled_from(["stop", "length", "abort"])))
    assert reply.message.role == "assistant"


def case_of(name: str) -> Case:
    return next(case for case in CASES if case.id == name)


COMMAND = {"command": "ls -la"}
CALL = '{"command": "ls -la"}'
XML_CALL = "<tool_call>\n<function=bash>\n<parameter=command>\nls -la\n</parameter>\n</function>\n</tool_call>"
TO_BASH = "<|end|><|start|>assistant to=functions.bash<|channel|>commentary json<|message|>"
SECTION = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
SOUND = {
    "qwen3-qwen3": f'<tool_call>\n{{"name": "bash", "arguments": {CALL}}}\n</tool_call>',
    "qwen3-coder-qwen3": XML_CALL,
    "qwen3.6-qwen3.6": "</think>" + XML_CALL,
    "llama-3-llama-3": f'{{"name": "bash", "parameters": {CALL}}}',
    "gpt-oss-gpt-oss": f"{TO_BASH}{CALL}<|call|>",
    "deepseek-v3-deepseek-v3": f"{SECTION}bash\n```json\n{CALL}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
}


@pytest.mark.parametrize("name", SOUND)
def test_arguments_stream_before_the_call_ends(name: str) -> None:
    """One id at a time: the name and most of the arguments are said before the last id of the call."""
    case = case_of(name)
    ids = ids_of(case, SOUND[name])
    parser = rendering(case).parser(prompt_of(case), tools_of(case))
    before = [delta for token in ids[:-1] for delta in parser.feed([token])]
    _, _, calls, _ = total(before)
    assert calls and calls[0][0] == "bash" and calls[0][1].startswith('{"command": "ls')
    parser.feed(ids[-1:])
    reply = parser.finish("stop")
    assert [json.loads(call.arguments) for call in reply.message.tool_calls] == [COMMAND] and not reply.malformed


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_call_cut_anywhere_is_kept_as_far_as_it_was_said(name: str, finish: Any) -> None:
    """What a cut call reaches the harness as: text where it has no name yet, else its arguments so far."""
    case = case_of(name)
    ids = ids_of(case, SOUND[name])
    for end in range(len(ids)):
        _, reply = stream(case, ids[:end], list(range(end)), finish)
        for call in reply.message.tool_calls:
            assert call.name == "bash"
            assert '{"command": "ls -la"}'.startswith(call.arguments) or reply.malformed


BAD = "<tool_call>\nnot json\n</tool_call>"
TWO = '<tool_call>{"name": "bash", "arguments": {}}{"name": "submit", "arguments": {}}</tool_call>'
TWO_JSON = '{"name": "submit", "parameters": {}}; {"name": "x", "parameters": {}}'
NESTED = '<tool_call><tool_call>{"name": "submit", "arguments": {}}</tool_call>'
UNCLOSED = "<tool_call><function=bash><parameter=command>ls -la\n</function></tool_call>"
TWO_XML = (
    "<tool_call><function=submit></function><function=bash><parameter=command>ls</parameter></function></tool_call>"
)
NO_NUMBER = "<tool_call>\n<function=edit>\n<parameter=count>\nmany\n</parameter>\n</function>\n</tool_call>"
MALFORMED = [
    # bad JSON
    ("qwen3-qwen3", BAD, BAD, []),
    ("llama-3-llama-3", '{"name": "bash", "parameters": {"command": ls}}', "", [("bash", '{"command": ls}')]),
    ("gpt-oss-gpt-oss", TO_BASH + "{ls<|call|>", "", [("bash", "{ls")]),
    ("deepseek-v3-deepseek-v3", SECTION + "bash\n```json\n{ls\n```<｜tool▁call▁end｜>", "", [("bash", "{ls\n```")]),
    ("qwen3-coder-qwen3", NO_NUMBER, "", [("edit", '{"count": "many"}')]),
    # raw control characters
    ("qwen3-qwen3", '<tool_call>{"name": "bash", "arguments": {"a": "b\n\x01"}}</tool_call>', "",
     [("bash", '{"a": "b\n\x01"}')]),
    # two calls run together
    ("qwen3-qwen3", TWO, "", [("bash", "{}")]),
    ("llama-3-llama-3", TWO_JSON, "", [("submit", "{}")]),
    ("qwen3-coder-qwen3", TWO_XML, "", [("submit", "{}")]),
    # nested tags
    ("qwen3-qwen3", NESTED, NESTED, []),
    # a parameter that is never closed
    ("qwen3-coder-qwen3", UNCLOSED, "", [("bash", CALL)]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "content", "calls"), MALFORMED)
def test_malformed_calls_reach_the_harness(name: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    case = case_of(name)
    _, reply = stream(case, ids_of(case, text), [3, 5])
    assert reply.message.content == content
    assert [(call.name, call.arguments) for call in reply.message.tool_calls] == calls
    assert len(reply.malformed) == 1


def test_tags_inside_a_value_are_part_of_it() -> None:
    case = case_of("qwen3-coder-qwen3")
    text = "<tool_call><function=bash><parameter=command>a<parameter=x><function=b>b</parameter></function></tool_call>"
    _, reply = stream(case, ids_of(case, text), list(range(40)))
    assert [call.arguments for call in reply.message.tool_calls] == ['{"command": "a<parameter=x><function=b>b"}']
    assert not reply.malformed


@pytest.mark.parametrize("name", ["qwen3-qwen3", "llama-3-llama-3", "deepseek-v3-deepseek-v3", "gpt-oss-gpt-oss"])
def test_a_call_of_an_unknown_tool_is_the_harnesss_to_answer(name: str) -> None:
    case = case_of(name)
    _, reply = stream(case, ids_of(case, SOUND[name].replace("bash", "nosuch")), [])
    assert [call.name for call in reply.message.tool_calls] == ["nosuch"] and not reply.malformed
