"""What each family's template drops of earlier turns, and what becomes of a call then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lego.trajectory.arrays import as_ids
from lego.trajectory.messages import Message, ToolCall
from lego.trajectory.prompt import HistoryPolicy, Prompt, compose
from lego.trajectory.segments import segments
from lego.trajectory.tree import CallTree
from tests.trajectory.families._support import CASES, Case, ids_of, rendering, tools_of

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
ASKED = [Message("system", "Be brief."), Message("user", "Why?")]
ON = Message("user", "Go on.")


def first_reply(case: Case) -> Message:
    return Message("assistant", "Because.", "It must be so." if case.thinks else None)


def talk(case: Case, history: HistoryPolicy, reply: Message, new: list[Message]) -> tuple[CallTree, list[Prompt]]:
    """Two calls: the reply as the family says it, and then `new`."""
    r, tools, tree = rendering(case), tools_of(case), CallTree()
    first = compose(tree, r, ASKED, tools, history)
    ids = r.encode_reply(ASKED, reply, tools)
    said = r.parse(ids, tools, first.ids).message
    said = replace(said, tool_calls=tuple(replace(call, id=f"c{n}") for n, call in enumerate(said.tool_calls)))
    first.enter(tree, ids, -np.ones(len(ids), dtype=np.float32), "stop", said)
    second = compose(
        tree, r, [*ASKED, replace(said, reasoning=None if case.drops else said.reasoning), *new], tools, history
    )
    last = [*ids_of(case, "So."), r.stop_ids[0]]
    second.enter(tree, last, -np.ones(len(last), dtype=np.float32), "stop", Message("assistant", "So."))
    return tree, [first, second]


@each
def test_raw_keeps_every_sampled_id(case: Case) -> None:
    tree, (first, second) = talk(case, "raw", first_reply(case), [ON])
    assert second.how == "continued" and second.shared == tree[1].length
    [segment] = segments(tree).segments
    assert segment.sampled == sum(len(call.completion_ids) for call in tree)


@each
def test_template_is_what_a_stock_server_renders(case: Case) -> None:
    """A family whose template drops something forks there; either way every sampled id is trained in its context."""
    r, tools = rendering(case), tools_of(case)
    tree, (first, second) = talk(case, "template", first_reply(case), [ON])
    echoed = replace(first_reply(case), reasoning=None) if case.drops else first_reply(case)
    assert second.ids.tolist() == r.render([*ASKED, echoed, ON], tools)
    assert second.how == ("forked" if case.drops else "continued")
    parts = segments(tree)
    assert not parts.dropped
    assert sum(s.sampled for s in parts.segments) == sum(len(call.completion_ids) for call in tree)
    for segment in parts.segments:
        path = tree.full_ids(tree[segment.leaf])
        assert np.array_equal(segment.ids, path[: len(segment.ids)])
    assert len(parts.segments) == (2 if case.drops else 1)


@pytest.mark.parametrize("case", [case for case in CASES if case.thinks and case.drops], ids=lambda case: case.id)
def test_what_template_drops(case: Case) -> None:
    """The thinking of turns before the last question goes; what was said stays."""
    r = rendering(case)
    _, (_, second) = talk(case, "template", first_reply(case), [ON])
    text = r.decode(second.ids)
    assert "Because." in text and "It must be so." not in text
    _, (_, raw) = talk(case, "raw", first_reply(case), [ON])
    assert "It must be so." in r.decode(raw.ids)


@pytest.mark.parametrize("case", [case for case in CASES if case.calls], ids=lambda case: case.id)
@pytest.mark.parametrize("history", ["raw", "template"])
def test_a_tool_cycle_continues(case: Case, history: HistoryPolicy) -> None:
    """Within a tool cycle no template drops anything that the harness gives back."""
    reply = Message("assistant", "", "hm" if case.thinks else None, (ToolCall("", "submit", "{}"),))
    r, tools = rendering(case), tools_of(case)
    result = Message("tool", "done", tool_call_id="c0")
    tree, (first, second) = talk(replace(case, drops=False), history, reply, [result])
    assert second.how == "continued"
    called = replace(reply, tool_calls=(ToolCall("c0", "submit", "{}"),))
    assert second.ids.tolist() == r.render([*ASKED, called, result], tools)


def test_a_tool_result_is_named_where_the_format_names_it() -> None:
    case = next(case for case in CASES if case.family == "gpt-oss")
    reply = Message("assistant", "", "hm", (ToolCall("", "submit", "{}"),))
    _, (_, second) = talk(case, "raw", reply, [Message("tool", "done", tool_call_id="c0")])
    assert "functions.submit to=assistant" in rendering(case).decode(second.ids)


@each
def test_a_continued_prompt_encodes_only_what_is_new(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    r, tools = rendering(case), tools_of(case)
    prompt = as_ids(r.render([Message("user", "old " * 500)], tools))
    completion = as_ids([*ids_of(case, "so"), r.stop_ids[0]])
    asked: list[str] = []
    encode = type(r.tokenizer).encode

    def spy(self: object, text: str, *args: bool, **kwargs: bool) -> list[int]:
        asked.append(text)
        return encode(self, text, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(type(r.tokenizer), "encode", spy)
    assert r.extend(prompt, completion, [Message("user", "new")], tools) is not None
    assert not any("old" in text for text in asked) and sum(map(len, asked)) < 120
