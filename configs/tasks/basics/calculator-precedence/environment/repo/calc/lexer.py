"""Text to tokens: numbers as float, operators and parentheses as text."""

import re

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?|\.\d+)|([-+*/^()]))")


class CalcError(Exception):
    pass


def tokens(text):
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise CalcError(f"cannot read {text[at:]!r}")
        number, operator = match.groups()
        found.append(float(number) if number else operator)
        at = match.end()
    return found
