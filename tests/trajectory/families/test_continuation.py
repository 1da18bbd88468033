"""Continuing by raw ids: equal to the one-shot rendering outside sampled tokens, family by family."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.trajectory.arrays import as_ids
from lego.trajectory.messages import Message
from lego.trajectory.turns import turn_of
from tests.trajectory.families._support import (
    CASES,
    Case,
    any_id,
    examples,
    ids_of,
    inputs,
    rendering,
    replies,
    tools_of,
)

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@st.composite
def sampled(draw: st.DrawFn, case: Case) -> list[int]:
    """Whatever a policy may sample, without a stop id: text, marks, broken characters."""
    text = st.sampled_from(["so ", "{}", "\n", "a\u4f60", '{"name": "x"', "</", "</think>", "<think>"])
    pieces = st.lists(text.map(lambda t: ids_of(case, t)) | any_id(case).map(lambda i: [i]), max_size=8)
    return [token for piece in draw(pieces) for token in piece if token not in rendering(case).stop_ids]


@each
@examples(25)
@given(data=st.data())
def test_continuing_is_rendering_with_the_raw_ids_in_place(case: Case, data: st.DataObject) -> None:
    """Whatever was sampled: the continued ids are the one-shot rendering's, but for each reply's own ids."""
    r, tools = rendering(case), tools_of(case)
    messages, raw = data.draw(inputs(case, first=True)), {}
    prompt = r.render(messages, tools)
    for _ in range(data.draw(st.integers(1, 4))):
        completion = [*data.draw(sampled(case)), data.draw(st.sampled_from(r.stop_ids))]
        new = data.draw(inputs(case))
        added = r.extend(as_ids(prompt), as_ids(completion), new, tools)
        assert added is not None
        raw[len(messages)] = as_ids(completion)
        messages = [*messages, data.draw(replies(case)), *new]
        prompt = [*prompt, *completion, *added]
    assert r.render_spliced(messages, tools, raw) == (prompt, len(raw))


@each
@examples(25)
@given(data=st.data())
def test_continuing_what_the_family_says_is_rendering_at_once(case: Case, data: st.DataObject) -> None:
    """Replies that are sampled as the family writes them: every id is the one-shot rendering's, as long as the
    template drops nothing."""
    r, tools = rendering(case), tools_of(case)
    messages = data.draw(inputs(case, first=True))
    prompt = r.render(messages, tools)
    for _ in range(data.draw(st.integers(1, 3))):
        reply = data.draw(replies(case, in_cycle=case.drops))
        completion = r.encode_reply(messages, reply, tools)
        new = data.draw(inputs(case, roles=("tool",) if case.drops else ("user", "tool")))
        added = r.extend(as_ids(prompt), as_ids(completion), new, tools)
        assert added is not None
        messages = [*messages, reply, *new]
        prompt = [*prompt, *completion, *added]
        assert prompt == r.render(messages, tools)


@each
@examples(25)
@given(data=st.data())
def test_the_turn_alone_continues_as_the_package_does_from_the_whole(case: Case, data: st.DataObject) -> None:
    r, tools = rendering(case), tools_of(case)
    prompt = r.render(data.draw(inputs(case, first=True)), tools)
    stop = data.draw(st.sampled_from([[], *([s] for s in r.stop_ids)]))
    completion = [*data.draw(sampled(case)), *stop]
    new = data.draw(inputs(case))
    ours = r.extend(as_ids(prompt), as_ids(completion), new, tools)
    theirs = r.renderer.bridge_to_next_turn(prompt, completion, [turn_of(m) for m in new], tools=None)
    assert ours is not None
    if theirs is not None:
        assert list(theirs.token_ids) == [*prompt, *completion, *ours]
    else:
        assert stop


@each
@examples(15)
@given(data=st.data())
def test_a_cut_reply_is_closed_by_added_ids(case: Case, data: st.DataObject) -> None:
    r, tools = rendering(case), tools_of(case)
    prompt = as_ids(r.render(data.draw(inputs(case, first=True)), tools))
    cut, new = data.draw(sampled(case)), data.draw(inputs(case))
    whole = r.extend(prompt, as_ids([*cut, r.stop_ids[0]]), new, tools)
    closed = r.extend(prompt, as_ids(cut), new, tools)
    assert whole is not None and closed is not None
    assert closed[-len(whole) :] == whole and len(closed) > len(whole)


@each
def test_what_cannot_be_proven_is_none(case: Case) -> None:
    r, tools = rendering(case), tools_of(case)
    prompt = as_ids(r.render([Message("user", "go")], tools))
    completion = as_ids([*ids_of(case, "so"), r.stop_ids[0]])
    assert r.extend(prompt, completion, [], tools) is None
    assert r.extend(prompt, completion, [Message("assistant", "so"), Message("user", "on")], tools) is None
    stop_inside = as_ids([r.stop_ids[0], *ids_of(case, "so")])
    assert r.extend(prompt, stop_inside, [Message("user", "on")], tools) is None
