"""What people, and programs, may write in place of what was meant: any value at any place of plain data."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

WORDS = st.sampled_from(
    [
        "", " ", "!", "[", "..", "../x", "/", "/app", "-x", "--help", "a/b", "a b", "a\nb", "\0", "\ud800", "\x7f", "é",
        "~nobody/x", "${HOME}", "${A", "{x}", "{repo}", "https://x/{owner}", "'", '"', "[" * 3000, "1e999", "9" * 5000,
        "nan", "null", "parse_log_jest", "steps", "x" * 300,
    ]
)  # fmt: skip
TEXTS = WORDS | st.text(max_size=8)
NUMBERS = st.integers(-3, 70000) | st.sampled_from(
    [10**30, -(10**30), 10**400, 0.5, 1e308, -1.0, float("inf"), float("nan")]
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
)


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Every place in nested data, the whole of it first."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


@st.composite
def spoilt(draw: st.DrawFn, *sound: Any) -> Any:
    """One of the `sound` values with anything at one to three places, or with a place left out, or a key added."""
    value = copy.deepcopy(draw(st.sampled_from(sound)))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.sampled_from(list(places(value))))
        if not where:
            if draw(st.integers(0, 9)) == 0:
                value = draw(ANYTHING)
            continue
        inside = value
        for part in where[:-1]:
            inside = inside[part]
        how = draw(st.integers(0, 9))
        if how == 0:
            del inside[where[-1]]
        elif how == 1 and isinstance(inside, dict):
            inside[draw(TEXTS)] = draw(ANYTHING)
        else:
            inside[where[-1]] = draw(ANYTHING)
    return value
