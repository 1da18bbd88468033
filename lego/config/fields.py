"""The schema seen as a list of settings: what `config show`, `init`, the loader and the run database walk."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from lego.config.schema import Config, Tag


@dataclass(frozen=True)
class Setting:
    """One setting. `key` is dotted ("train.optimizer.lr"); lists and free mappings are one setting as a whole."""

    key: str
    type: Any
    tag: Tag
    doc: str
    default: Any


def section_fields(section: type) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Name -> (resolved type, dataclass field) of a section, in the order of the schema."""
    hints = _hints(section)
    return {field.name: (hints[field.name], field) for field in dataclasses.fields(section)}


@cache
def _hints(section: type) -> dict[str, Any]:
    return typing.get_type_hints(section)


def is_section(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def element_type(kind: Any) -> Any:
    """The type of a list's items or of a mapping's values; None where `kind` is neither."""
    if isinstance(kind, types.GenericAlias):
        return kind.__args__[-1]
    return None


def default_of(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def sections(section: Any = None, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Every section of the schema with its dotted name, outermost first; the root is ""."""
    section = section or Config
    yield prefix, section
    for name, (kind, _) in section_fields(section).items():
        if is_section(kind):
            yield from sections(kind, _join(prefix, name))


def settings() -> list[Setting]:
    """Every setting of a run config, in the order of the schema, with the default it has in its place."""
    return list(_walk(Config, Config(), ""))


def _walk(section: type, defaults: Any, prefix: str) -> Iterator[Setting]:
    for name, (kind, field) in section_fields(section).items():
        key, default = _join(prefix, name), getattr(defaults, name)
        if is_section(kind):
            yield from _walk(kind, default, key)
        else:
            yield Setting(key, kind, field.metadata["tag"], field.metadata["doc"], default)


def tags() -> dict[str, Tag]:
    """Dotted key -> identity | tunable | machine."""
    return {setting.key: setting.tag for setting in settings()}


def resolved(config: Config) -> dict[str, Any]:
    """The whole config as plain nested values, ready for JSON or YAML."""
    return dataclasses.asdict(config)


def flat(config: Config) -> dict[str, Any]:
    """Dotted key -> plain value, with exactly the keys of `tags()`."""
    tree = resolved(config)
    return {setting.key: _get(tree, setting.key) for setting in settings()}


def _get(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree[part]
    return tree


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
