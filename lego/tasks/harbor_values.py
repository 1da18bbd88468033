"""Kinds of values that a Harbor `task.toml` has in many places."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, FiniteFloat


def _whole(value: Any) -> Any:
    """2048.0 is a whole number in JSON Schema's and Harbor's eyes."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _image(value: str) -> str:
    """What podman could take for an option or for two words is no image's name."""
    if not re.fullmatch(r"(?!-)[!-~]*", value):
        raise ValueError(f"{value!r} is not the name of an image")
    return value


Seconds = Annotated[FiniteFloat, Field(gt=0)]
Whole = Annotated[int, BeforeValidator(_whole)]
Positive = Annotated[Whole, Field(gt=0)]
Mebibytes = Annotated[Positive, Field(le=2**40)]
"""At most what a count of bytes can be, in 64 bits."""
Image = Annotated[str, AfterValidator(_image)]
Variables = dict[Annotated[str, Field(pattern="^[^=]+$")], str]
