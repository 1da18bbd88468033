"""YAML with line numbers, and `key=value` from the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lego.errors import ConfigError
from lego.plain import one_line

Place = tuple[str | int, ...]
"""A place in nested data: mapping keys and list indices."""


class _Checked(yaml.SafeLoader):
    """Says where a value is that is none of the kind it is said to be."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.MarkedYAMLError(problem=f"this is no {kind}", problem_mark=node.start_mark) from error


class _Loader(_Checked):
    """YAML 1.2's scalars, as people expect them: 3e-4 is a number; on, off, yes and no are words."""


_OWN = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "float", "int", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _OWN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind, _pattern, _first in (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*)$", "-+0123456789"),
    ("float", r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(_pattern), list(_first))


@dataclass(frozen=True)
class Source:
    """Plain nested data and, for the dotted name of every place in it, the line (from 1) where it was written."""

    data: dict[str, Any]
    lines: dict[str, int]


def read_yaml(path: Path) -> Source:
    """Read a config file. Raises ConfigError for a file that is missing, not YAML, or not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", hint="`lego init` writes a config to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return Source({}, {})
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path} line {node.start_mark.line + 1}: a config is a mapping of sections")
        lines: dict[str, int] = {}
        _record(node, (), lines, path)
        return Source(loader.construct_document(node), lines)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}{_not_yaml(error)}") from error


def _not_yaml(error: yaml.YAMLError | RecursionError) -> str:
    """What is wrong with a YAML file, to be said after its name: with the line, where that is known."""
    if isinstance(error, RecursionError):
        return ": not YAML that can be read: it is nested too deeply, or within itself"
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark else ""
        return f"{line}: not YAML: {error.problem or error.context}"
    return f": not YAML: {one_line(str(error))}"


def safe_yaml(text: str, loader: type[yaml.SafeLoader] = _Checked) -> Any:
    """The values of a YAML text. Raises ValueError with what is wrong, to be said after the name of the file."""
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506  (a SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(_not_yaml(error)) from error


def _record(node: yaml.Node, place: Place, lines: dict[str, int], path: Path) -> None:
    if isinstance(node, yaml.MappingNode):
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{path} line {line}: a key must be a plain word")
            inner = (*place, key_node.value)
            name = dotted_name(inner)
            if name in lines:
                raise ConfigError(f"{name}: given twice ({path} lines {lines[name]} and {line})")
            lines[name] = line
            _record(value_node, inner, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            inner = (*place, index)
            lines[dotted_name(inner)] = item.start_mark.line + 1
            _record(item, inner, lines, path)


def parse_override(text: str) -> tuple[str, Any]:
    """`a.b=value` as (dotted key, value); the value is read as YAML. Raises ConfigError."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"{text!r} is not an override", hint="write key=value, like rollout.samples_per_task=4")
    try:
        return key.strip(), safe_yaml(value, _Loader) if value.strip() else ""
    except ValueError as error:
        raise ConfigError(f"{key}: the value {value[:200]!r} is not YAML") from error


def dotted_name(place: Sequence[str | int]) -> str:
    """("tasks", "train", 0, "path") -> "tasks.train[0].path"."""
    name = ""
    for part in place:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else str(part)
    return name
