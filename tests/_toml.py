"""Plain values written as TOML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def document(data: Mapping[str, Any]) -> str:
    """A file with the keys of `data`. TOML has no null: keys and items that are None are left out."""
    return "".join(f"{toml(str(key))} = {toml(value)}\n" for key, value in data.items() if value is not None)


def toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        inner = (f"{toml(str(key))} = {toml(one)}" for key, one in value.items() if one is not None)
        return "{" + ", ".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(one) for one in value if one is not None) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    return repr(value)
