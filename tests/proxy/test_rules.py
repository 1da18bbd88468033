from __future__ import annotations

import pytest

from lego.errors import ConfigError
from lego.proxy.rules import CallRules
from lego.trajectory.messages import Message

ASK = (Message("system", "You are a titler."), Message("user", "name this"))


def test_a_call_is_main_unless_a_rule_says_otherwise() -> None:
    assert CallRules().kind({"x-agent": "1"}, ASK, 0, {}) == "main"


def test_the_declared_header_marks_a_subagent() -> None:
    rules = CallRules(subagent={"header": "x-agent"})
    assert rules.kind({"x-agent": "7"}, ASK, 0, {}) == "subagent"
    assert rules.kind({}, ASK, 0, {}) == "main"


@pytest.mark.parametrize(
    ("matcher", "kind"),
    [
        ({"output_format": "json_schema"}, "auxiliary"),
        ({"output_format": "json_object"}, "main"),
        ({"system": "^You are a titler"}, "auxiliary"),
        ({"system": "coder"}, "main"),
        ({"last_user": "name"}, "auxiliary"),
        ({"tools": "none"}, "auxiliary"),
        ({"tools": "none", "system": "coder"}, "main"),
        ({}, "main"),
    ],
)
def test_all_keys_of_an_auxiliary_rule_must_match(matcher: dict[str, str], kind: str) -> None:
    wishes = {"response_format": {"type": "json_schema"}}
    assert CallRules(auxiliary=(matcher,)).kind({}, ASK, 0, wishes) == kind


def test_a_call_with_tools_is_not_one_without() -> None:
    assert CallRules(auxiliary=({"tools": "none"},)).kind({}, ASK, 2, {}) == "main"


def test_volatile_system_lines_are_taken_out_and_counted() -> None:
    rules = CallRules(volatile=({"system_line": "^x-billing"}, {"system_line": "tokens left$"}))
    said = Message("user", "x-billing stays in what users say")
    messages, removed = rules.settle((Message("system", "x-billing: 1\nBe brief.\n99 tokens left"), said))
    assert messages == (Message("system", "Be brief."), said)
    assert removed == 2


@pytest.mark.parametrize(
    "rules",
    [
        {"auxiliary": ({"outputformat": "x"},)},
        {"volatile": ({"system_line": "("},)},
        {"auxiliary": ({"system": "["},)},
        {"auxiliary": ({"tools": "some"},)},
        {"subagent": {"head": "x"}},
    ],
)
def test_a_rule_that_says_nothing_known_is_refused(rules: dict) -> None:
    with pytest.raises(ConfigError):
        CallRules(**rules)
