"""What a harness changed, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lego.trajectory.drift import difference
from lego.trajectory.messages import Message, Tool
from lego.trajectory.tree import CallTree
from tests.trajectory._support import TOOLS
from tests.trajectory.test_tree import BARE, ON, SYSTEM, TWO, USER, enter

RESULT = Message("tool", "r", tool_call_id="i1")


def told(messages: list[Message], tools: tuple[Tool, ...] = TOOLS) -> dict[str, object]:
    tree = CallTree()
    enter(tree, [SYSTEM, USER], TWO)
    enter(tree, [SYSTEM, USER, TWO, RESULT], BARE)
    return difference(tree.place(messages, tools), messages)


@pytest.mark.parametrize(
    ("messages", "changed", "at"),
    [
        ([SYSTEM, USER, TWO, RESULT, BARE, ON], None, None),
        ([SYSTEM, USER, TWO, ON, BARE, ON], "a reply that did not follow there", 4),
        ([SYSTEM, USER], "asked again", 2),
        ([SYSTEM, USER, ON], "our reply left out", 2),
        ([SYSTEM, USER, replace(TWO, tool_calls=TWO.tool_calls[:1]), RESULT],
         "the reply's calls: 1 of 2 kept, 1 now", 2),
        ([SYSTEM, USER, Message("assistant", "t"), RESULT], "the reply's calls: 0 of 2 kept, 0 now", 2),
        ([Message("system", "s "), USER], "the text", 0),
        ([SYSTEM, Message("tool", "u"), ON], "instead of a user message", 1),
        ([SYSTEM, replace(USER, name="x"), ON], "the name or calls it carries", 1),
    ],
)  # fmt: skip
def test_what_changed_is_said_with_its_place(messages: list[Message], changed: str | None, at: int | None) -> None:
    said = told(messages)
    assert (said.get("changed"), said.get("at")) == (changed, at)


def test_other_tools_are_told_from_another_first_message() -> None:
    assert told([SYSTEM, USER], ())["changed"] == "the list of tools"
    assert told([Message("user", "title"), USER], ())["changed"] == "instead of a system message"
    assert difference(CallTree().place([USER], ()), [USER]) == {}


def test_both_texts_are_shown_from_just_before_the_first_difference() -> None:
    tree = CallTree()
    long = "x" * 500
    enter(tree, [Message("system", f"{long} 12 tokens left {long}"), USER], BARE)
    messages = [Message("system", f"{long} 13 tokens left {long}"), USER]
    said = difference(tree.place(messages, TOOLS), messages)
    assert (said["changed"], len(said["was"]), len(said["now"])) == ("the text", 80, 80)
    assert "12 tokens left" in said["was"] and "13 tokens left" in said["now"]


def test_a_result_for_another_call_and_another_reply_with_the_same_text() -> None:
    tree = CallTree()
    enter(tree, [SYSTEM, USER], replace(BARE, mark="a"))
    enter(tree, [SYSTEM, USER, replace(BARE, mark="a"), RESULT], TWO)
    messages = [SYSTEM, USER, replace(BARE, mark="c"), ON]
    assert difference(tree.place(messages, TOOLS), messages)["changed"] == "another reply with the same text"
    tree = CallTree()
    enter(tree, [SYSTEM, RESULT], BARE)
    messages = [SYSTEM, replace(RESULT, tool_call_id="i9")]
    assert difference(tree.place(messages, TOOLS), messages)["changed"] == "which call it answers"
