from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from lego.plain import neutral, one_line


@given(st.text())
def test_nothing_neutral_can_steer_a_terminal(text: str) -> None:
    shown = neutral(text)
    assert not {character for character in shown if unicodedata.category(character) in ("Cc", "Cs")} - {"\n", "\t"}
    shown.encode()
    assert "\n" not in one_line(text) and "\t" not in one_line(text)


def test_what_is_harmless_stays_and_what_is_not_stays_visible() -> None:
    assert neutral("naïve 日本 👩‍👩‍👧\n\tok\r\n") == "naïve 日本 👩‍👩‍👧\n\tok\n"
    assert neutral("\x1b[31m\u202ex\ud800") == "�[31m�x�"
