"""A commented config to start from, written out of the schema: what is chosen is set, all else shows its default."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml

from lego.config import fields
from lego.config.schema import Config

_HEAD = """\
# A run of lego. Lines that start with "# " inside a section show a setting's default; uncomment to change one.
# * frozen when the run first uses it: another value means another run.
# Durations (60s, 2m, 1h30m) and sizes (512m, 1g) are written as people write them; relative paths count from
# the folder you run lego in. `lego config show` prints every value and where it came from.
"""
_WIDTH = 40


def starter(chosen: Mapping[str, Any]) -> str:
    """The text of a config in which the dotted keys of `chosen` are set. Keys and docs come from the schema."""
    lines = [_HEAD.rstrip()]
    for name, (kind, field) in fields.section_fields(Config).items():
        lines.append("")
        if fields.is_section(kind):
            lines += _section(name, kind, fields.default_of(field), name, chosen, 0)
        else:
            lines += _setting(name, fields.default_of(field), field, name, chosen, 0)
    return "\n".join(lines) + "\n"


def _section(name: str, kind: type, defaults: Any, key: str, chosen: Mapping[str, Any], depth: int) -> list[str]:
    lines = ["  " * depth + f"{name}:"]
    for inner, (inner_kind, field) in fields.section_fields(kind).items():
        inner_key, default = f"{key}.{inner}", getattr(defaults, inner)
        if fields.is_section(inner_kind):
            lines += _section(inner, inner_kind, default, inner_key, chosen, depth + 1)
        else:
            lines += _setting(inner, default, field, inner_key, chosen, depth + 1)
    return lines


def _setting(
    name: str, default: Any, field: dataclasses.Field[Any], key: str, chosen: Mapping[str, Any], depth: int
) -> list[str]:
    indent = "  " * depth
    doc = field.metadata["doc"] + (" *" if field.metadata["tag"] == "identity" else "")
    mark = "" if key in chosen else "# "
    value = chosen.get(key, default)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        items = [f"{indent}  - {_inline(item)}" for item in value]
        return [f"{indent}{name}:".ljust(_WIDTH) + f"  # {doc}", *items]
    return [f"{indent}{mark}{name}: {_inline(value)}".ljust(_WIDTH) + f"  # {doc}"]


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(key)}: {_inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)  # 1e-06, where PyYAML would write 1.0e-06
    return str(yaml.safe_dump(value, default_flow_style=True, width=10**6)).removesuffix("\n").removesuffix("\n...")
