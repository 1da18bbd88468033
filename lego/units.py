"""Durations and sizes as people write them."""

from __future__ import annotations

import re

from lego.errors import ConfigError

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NUMBER = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
_DURATION_PART = re.compile(rf"({_NUMBER})(ms|s|m|h|d)")
_SIZE = re.compile(rf"({_NUMBER})([kmgt]?)(?:i?b)?")


def parse_duration(text: str) -> float:
    """Seconds (> 0) of "60s", "2m", "1h30m", "250ms"; a bare number is seconds. Raises ConfigError."""
    compact = text.replace(" ", "").lower()
    if re.fullmatch(_NUMBER, compact):
        seconds = float(compact)
    elif re.fullmatch(rf"(?:{_DURATION_PART.pattern})+", compact):
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(compact))
    else:
        raise ConfigError(f"{text!r} is not a duration", hint="write it like 60s, 2m or 1h30m")
    if seconds <= 0:
        raise ConfigError(f"{text!r} is not a duration: it must be more than nothing")
    return seconds


def parse_size(text: str) -> int:
    """Bytes (>= 0) of "512m", "1g", "1.5GiB"; units are powers of 1024, a bare number is bytes. Raises ConfigError."""
    match = _SIZE.fullmatch(text.replace(" ", "").lower())
    if match is None:
        raise ConfigError(f"{text!r} is not a size", hint="write it like 512m or 1g")
    return int(float(match[1]) * _BYTES[match[2]])
