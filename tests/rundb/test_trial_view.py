"""What is said about a turn."""

from __future__ import annotations

from typing import Any

import pytest

from lego.rundb.trial_view import drift_words
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
