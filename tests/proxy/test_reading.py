"""What is remembered of earlier requests changes nothing but the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.proxy.anthropic import Anthropic
from lego.proxy.dialect import Dialect, Problem
from lego.proxy.openai_chat import OpenAIChat
from lego.proxy.reading import Memory, in_call_order
from lego.trajectory.messages import Message, ToolCall

TEXTS = st.sampled_from(["a", "b", ""])
ENTRIES = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "assistant"]), TEXTS),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("dialect", [OpenAIChat(), Anthropic()])
@settings(deadline=None)
@given(conversations=st.lists(ENTRIES, min_size=1, max_size=9))
def test_what_is_read_does_not_depend_on_what_was_read_before(
    dialect: Dialect, conversations: list[list[dict[str, str]]]
) -> None:
    memory = Memory()
    for messages in conversations:
        body = {"messages": messages}
        assert dialect.read(body, memory).messages == dialect.read(body).messages


def test_of_a_history_that_comes_again_only_the_new_entries_are_read() -> None:
    memory, looked = Memory(), []

    def one(entry: Any, index: int) -> Sequence[Message]:
        looked.append(index)
        return (Message("user", entry),)

    main, agent = ["s", "u"], ["t", "u"]
    list(memory.read(main, one))
    for turn in range(5):
        main, agent = [*main, f"m{turn}"], [*agent, f"a{turn}"]
        first = list(memory.read(main, one))
        list(memory.read(agent, one))
    assert looked == [0, 1, 2, 0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 6]
    assert all(a is b for a, b in zip(first, memory.read([*main], one), strict=True))


def test_an_entry_that_cannot_be_read_is_refused_again_and_leaves_nothing() -> None:
    memory = Memory()
    good: dict[str, Any] = {"role": "user", "content": "x"}
    for _ in range(2):
        with pytest.raises(Problem, match=r"messages\[1\]"):
            OpenAIChat().read({"messages": [good, {"role": "king"}]}, memory)
    assert len(OpenAIChat().read({"messages": [good]}, memory).messages) == 1


MESSAGES = st.lists(
    st.one_of(
        st.sampled_from([Message("user", "u"), Message("system", "s")]),
        st.builds(lambda i, text: Message("tool", text, tool_call_id=i), st.sampled_from(["1", "2", "3", None]), TEXTS),
        st.permutations(["1", "2", "3"]).map(
            lambda ids: Message("assistant", tool_calls=tuple(ToolCall(i, "t", "{}") for i in ids[:2]))
        ),
    ),
    max_size=9,
)


@settings(deadline=None)
@given(MESSAGES)
def test_results_stand_in_the_order_of_the_calls_before_them_and_all_else_stays(messages: list[Message]) -> None:
    ordered = in_call_order(messages)
    assert len(ordered) == len(messages)
    assert [m if m.role != "tool" else None for m in ordered] == [m if m.role != "tool" else None for m in messages]
    begin, order = 0, {}
    for at in range(len(messages) + 1):
        if at == len(messages) or messages[at].role == "assistant":
            given = [m for m in messages[begin:at] if m.role == "tool"]
            said = [m for m in ordered[begin:at] if m.role == "tool"]
            assert said == sorted(given, key=lambda m: order.get(m.tool_call_id, len(order)))
            begin = at + 1
            order = {} if at == len(messages) else {call.id: n for n, call in enumerate(messages[at].tool_calls)}
