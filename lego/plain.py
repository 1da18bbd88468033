"""Text that somebody else wrote, made safe to show: it must not steer the terminal or the page it is shown on."""

from __future__ import annotations

import re

# Control characters (escape among them), lone surrogates, and what reorders or hides text: bidirectional controls,
# zero-width characters that are no part of an emoji, tags, and line and paragraph separators.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\U000e0000-\U000e007f]"
)


def neutral(text: str) -> str:
    """The text with every character that could do more than be seen replaced by U+FFFD; newlines and tabs stay."""
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`neutral`, on one line: runs of white space become one space."""
    return " ".join(neutral(text).split())
