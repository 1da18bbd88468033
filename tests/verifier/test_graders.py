from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.verifier.graders import REWARD_JSON, REWARD_TEXT, read_reward


@pytest.mark.parametrize(("text", "value"), [("1", 1.0), (" 0.25\n", 0.25), ("-1e-3", -0.001), ("0", 0.0)])
def test_a_number_is_a_reward(text: str, value: float) -> None:
    assert read_reward({REWARD_TEXT: text.encode()}).value == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("pass", "not a number"),
        ("1 1", "not a number"),
        ("nan", "not finite"),
        ("inf", "not finite"),
        ("\x00", "not a number"),
    ],
)
def test_anything_else_is_none_not_zero(text: str, why: str) -> None:
    reward = read_reward({REWARD_TEXT: text.encode()})
    assert reward.value is None and why in reward.why


def test_no_file_is_none() -> None:
    assert read_reward({REWARD_JSON: None, REWARD_TEXT: None}).value is None


@pytest.mark.parametrize(
    ("body", "value"), [({"reward": 0.5, "style": 1}, 0.5), ({"score": 1}, 1.0), ({"a": 1, "b": 0}, 0.5)]
)
def test_json_wins_over_text(body: dict[str, float], value: float) -> None:
    reward = read_reward({REWARD_JSON: json.dumps(body).encode(), REWARD_TEXT: b"0.125"})
    assert reward.value == value and reward.parts == body


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[1]",
        "{}",
        "1",
        '{"a": "1"}',
        '{"a": true}',
        '{"a": NaN}',
        '{"a": 1e999}',
        '{"a": null}',
        "\xff",
        '{"a": 1' + "0" * 400 + "}",
        "[" * 100_000,
    ],
)
def test_broken_json_is_none_even_beside_a_good_text(body: str) -> None:
    assert read_reward({REWARD_JSON: body.encode("latin-1"), REWARD_TEXT: b"1"}).value is None


@given(st.binary(max_size=40), st.sampled_from([REWARD_JSON, REWARD_TEXT]))
def test_no_bytes_make_it_raise_or_give_a_number_that_is_not_finite(data: bytes, path: str) -> None:
    value = read_reward({path: data}).value
    assert value is None or math.isfinite(value)
