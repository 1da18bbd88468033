"""What is said about a turn, and about a verdict."""

from __future__ import annotations

from typing import Any

import pytest

from lego.rundb.trial_view import drift_words, why
from stages.show import turn_lines


@pytest.mark.parametrize(
    ("drift", "words"),
    [
        ({}, ""),
        (
            {"how": "forked", "at": 4, "role": "user", "changed": "our reply left out", "was": "a'b", "now": "c"},
            "forked at message 5: our reply left out, was \"a'b\", now 'c'",
        ),
        ({"how": "root", "at": 0, "changed": "the list of tools"}, "root at message 1: the list of tools"),
        ({"how": "forked", "spliced": 2, "rerendered": 1}, "forked; 2 earlier replies put in by their ids; 1 earlier"
         " replies written from text"),
        ({"volatile": 3}, "3 volatile lines taken out"),
        ({"foreign": "by curl, where the harness calls as opencode"},
         "not the harness's: by curl, where the harness calls as opencode"),
    ],
)  # fmt: skip
def test_drift_in_words(drift: dict[str, Any], words: str) -> None:
    assert drift_words(drift) == words


def test_a_turn_shows_what_the_harness_changed() -> None:
    turn = {
        "seq": 3, "kind": "main", "fate": "delivered", "finish": "stop", "sampled_tokens": 7, "new_messages": [],
        "reply": {"content": "ok"}, "drift": {"how": "forked", "at": 1, "changed": "asked again"},
    }  # fmt: skip
    assert turn_lines(turn, full=False)[-1] == "    ↳ forked at message 2: asked again"
    refused = {**turn, "kind": "rejected", "status": 403, "reason": "foreign", "drift": {"problem": "/usr/bin/curl"}}
    assert turn_lines(refused, full=False) == ["  3 refused   403 foreign: /usr/bin/curl"]


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ({}, "the tests gave 0"),
        ({"parts": {"speed": 0.5}}, "the tests gave 0 (speed 0.5)"),
        ({"named": 3, "named_passed": 3}, "3 of 3 named tests passed"),
        (
            {"named": 4, "named_passed": 1, "named_failed": {"t::a": "FAILED", "t::b": "missing", "t::c": "FAILED"}},
            "1 of 4 named tests passed; not t::a (FAILED), t::b (missing) and 1 more",
        ),
        ({"named": 3, "named_passed": 3, "canary": "the canary is not reported as failed"}, "the canary is not reported"
         " as failed"),
        ({"named": 3, "named_passed": 0, "reason": "no test is reported"}, "no test is reported"),
    ],
)  # fmt: skip
def test_why_in_words(detail: dict[str, Any], words: str) -> None:
    assert why({"detail": detail, "reward": 0.0}) == words
