"""Does plain data have the shape of the schema? Unknown keys, wrong types and secrets, each with its place."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lego.config import fields, secrets
from lego.config.schema import Config
from lego.config.source import Place, dotted_name

_UNFIT = re.compile("[\0\ud800-\udfff]")
"""What neither files nor programs can be given: a character 0, and halves of surrogate pairs."""
_KINDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class Problem:
    """What is wrong with one setting; `key` is its dotted name."""

    key: str
    message: str


def misfits(data: Any, kind: Any = Config, place: Place = ()) -> Iterator[Problem]:
    """What in `data` the schema type `kind` cannot hold. Values with an interpolation are judged once resolved."""
    name = dotted_name(place)
    element = fields.element_type(kind)
    if isinstance(data, str) and _UNFIT.search(data):
        yield Problem(name, f"holds a character that no text may have: {data[:60]!r}")
    elif secrets.secret_value(data):
        yield Problem(name, f"this looks like a secret, and a config is no place for one; {secrets.ADVICE}")
    elif kind is Any:
        yield from _free(data, place)
    elif isinstance(data, str) and "${" in data:
        return
    elif fields.is_section(kind):
        yield from _section(data, kind, place)
    elif element is not None and kind.__origin__ is list:
        if not isinstance(data, list):
            yield Problem(name, f"must be a list, not {_shown(data)}")
            return
        for index, item in enumerate(data):
            yield from misfits(item, element, (*place, index))
    elif element is not None:
        if not isinstance(data, dict):
            yield Problem(name, f"must be a mapping (name: value), not {_shown(data)}")
            return
        for key, value in data.items():
            yield from _secret_key(str(key), (*place, str(key)))
            yield from misfits(value, element, (*place, str(key)))
    elif not _fits(data, kind):
        yield Problem(name, f"must be {_KINDS[kind]}, not {_shown(data)}")


def _section(data: Any, kind: type, place: Place) -> Iterator[Problem]:
    if data is None and not isinstance(place[-1], int):
        return
    if not isinstance(data, dict):
        yield Problem(dotted_name(place), f"must be a section (key: value), not {_shown(data)}")
        return
    known = fields.section_fields(kind)
    for key, value in data.items():
        inner = (*place, str(key))
        if key in known:
            yield from misfits(value, known[key][0], inner)
        elif secrets.secret_name(str(key)) or secrets.secret_value(value):
            yield from _secret_key("secret", inner)
        else:
            near = nearest(str(key), place, known)
            advice = f"; did you mean {near}?" if near else f"; keys here: {', '.join(known)}"
            yield Problem(dotted_name(inner), f"no such key{advice}")


def _free(data: Any, place: Place) -> Iterator[Problem]:
    """A value of any type: only secrets are refused, and numbers that nothing else can read."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _secret_key(str(key), (*place, str(key)))
            yield from misfits(value, Any, (*place, str(key)))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from misfits(value, Any, (*place, index))
    elif isinstance(data, int | float) and not isinstance(data, bool) and not _fits(data, float):
        yield Problem(dotted_name(place), f"must be {_KINDS[float]}, not {_shown(data)}")


def _secret_key(key: str, place: Place) -> Iterator[Problem]:
    if secrets.secret_name(key):
        yield Problem(dotted_name(place), f"secrets do not belong in a config; {secrets.ADVICE}")


def nearest(key: str, place: Place, known: Any) -> str:
    """The dotted name of the valid key most like `key`: beside it first, then anywhere; "" where none is near."""
    beside = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    if beside:
        return dotted_name((*place, beside[0]))
    names = [name for name, _ in fields.sections() if name] + [setting.key for setting in fields.settings()]
    by_tail: dict[str, str] = {}
    for name in names:
        by_tail.setdefault(name.rsplit(".", 1)[-1], name)
    anywhere = difflib.get_close_matches(key.rsplit(".", 1)[-1], list(by_tail), n=1, cutoff=0.8)
    return by_tail[anywhere[0]] if anywhere else ""


def _fits(data: Any, kind: type) -> bool:
    if kind is str:
        return isinstance(data, str | int | float) and not isinstance(data, bool)
    if kind is bool:
        return isinstance(data, bool)
    if isinstance(data, bool):
        return False
    if isinstance(data, int):
        return -(2**63) <= data < 2**63
    return kind is float and isinstance(data, float) and math.isfinite(data)


def _shown(data: Any) -> str:
    if data is None:
        return "nothing; leave the line out for the default"
    if isinstance(data, dict | list):
        return "a mapping" if isinstance(data, dict) else "a list"
    return repr(data)[:200] if not isinstance(data, bool) else str(data).lower()
