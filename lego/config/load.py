"""A config file and overrides become one checked `Config`, and every value knows where it came from.

Relative paths in a config count from the current folder (the root of the user's project), not from the config's
own folder; see `lego.config.places.locate` for the configs that lego ships.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lego.config import fields, rules, secrets
from lego.config.fields import flat, resolved, tags
from lego.config.places import locate
from lego.config.schema import Config
from lego.config.shape import Problem, misfits
from lego.config.source import Place, dotted_name, parse_override, read_yaml
from lego.errors import ConfigError
from lego.plain import one_line

__all__ = ["Loaded", "flat", "load", "resolved", "tags"]

COMMAND_LINE = "command line"
DEFAULT = "default"


@dataclass(frozen=True)
class Loaded:
    """A checked config. `origin` has the keys of `tags()`; its values are "default", "FILE:LINE" or "command line"."""

    config: Config
    origin: dict[str, str]
    path: Path


def load(path: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """Read a run config, lay `key=value` overrides over it, and check it.

    Raises ConfigError naming the first thing wrong, with its place and the nearest valid key; the hint lists
    what else is wrong.
    """
    found = locate(path)
    source = read_yaml(found)
    data = copy.deepcopy(source.data)
    origin: dict[str, str] = {name: f"{found}:{line}" for name, line in source.lines.items()}
    for text in overrides:
        key, value = parse_override(text)
        _lay(data, _place_of(key), value, origin)
    _refuse(misfits(data), origin)
    config = _build(data, origin)
    _refuse(_late_secrets(config), origin)
    _refuse(rules.broken(config), origin)
    for source_ in [*config.tasks.train, *config.tasks.eval]:
        if source_.path:
            source_.path = str(locate(source_.path))
    return Loaded(config, {key: _origin_of(key, data, origin) for key in tags()}, found)


def _place_of(key: str) -> Place:
    """The place a dotted key names, as the schema reads it: `tasks.train[0].seed`, `images.base_map.python:3.11`."""
    place: list[str | int] = []
    kind: Any = Config
    rest = key
    while rest:
        element = fields.element_type(kind)
        if element is not None and kind.__origin__ is dict:
            place.append(rest.removeprefix("[").removesuffix("]") if rest.startswith("[") else rest)
            break
        match = re.match(r"\[?([^.\[\]]+)\]?\.?", rest)
        if match is None:
            place.append(rest)
            break
        part, rest = match[1], rest[match.end() :]
        if element is not None:
            place.append(int(part) if part.isdigit() else part)
            kind = element
        else:
            place.append(part)
            known = fields.section_fields(kind) if fields.is_section(kind) else {}
            kind = known[part][0] if part in known else None
    return tuple(place)


def _lay(data: dict[str, Any], place: Place, value: Any, origin: dict[str, str]) -> None:
    """Set one place in nested data. A mapping given for a section is laid over it key by key."""
    kind = _kind_at(place)
    if fields.is_section(kind) and isinstance(value, dict) and not isinstance(place[-1], int):
        for key, inner in value.items():
            _lay(data, (*place, str(key)), inner, origin)
        return
    here: Any = data
    for depth, part in enumerate(place[:-1], start=1):
        here = _step(here, part, place[:depth])
    last = place[-1]
    if isinstance(here, list):
        _index(here, last, place)
        here[int(last)] = value
    elif isinstance(here, dict):
        here[last] = value
    else:
        raise ConfigError(f"{dotted_name(place[:-1])}: has no keys of its own ({COMMAND_LINE})")
    for name in [name for name in origin if name.startswith((dotted_name(place) + ".", dotted_name(place) + "["))]:
        del origin[name]
    for depth in range(1, len(place) + 1):
        if not fields.is_section(_kind_at(place[:depth])) or depth == len(place):
            origin[dotted_name(place[:depth])] = COMMAND_LINE


def _step(here: Any, part: str | int, place: Place) -> Any:
    if isinstance(here, list):
        _index(here, part, place)
        return here[int(part)]
    inner = here.get(part)
    if inner is None:
        # A free mapping that the file leaves out starts from its default, so that an override adds to it.
        defaults = {setting.key: setting.default for setting in fields.settings()}
        inner = here[part] = copy.deepcopy(defaults.get(dotted_name(place), {}))
    if not isinstance(inner, dict | list):
        raise ConfigError(f"{dotted_name(place)}: has no keys of its own ({COMMAND_LINE})")
    return inner


def _index(items: list[Any], part: str | int, place: Place) -> None:
    if not isinstance(part, int) or part >= len(items):
        raise ConfigError(
            f"{dotted_name(place)}: there is no such item ({COMMAND_LINE})",
            hint=f"{dotted_name(place[:-1])} has {len(items)} in the file, counted from 0",
        )


def _kind_at(place: Place) -> Any:
    kind: Any = Config
    for part in place:
        element = fields.element_type(kind)
        if element is not None:
            kind = element
        else:
            known = fields.section_fields(kind) if fields.is_section(kind) else {}
            kind = known[str(part)][0] if part in known else None
    return kind


def _build(data: dict[str, Any], origin: dict[str, str]) -> Config:
    try:
        tree = OmegaConf.structured(Config)
        for setting in fields.settings():
            element = fields.element_type(setting.type)
            if element is not None and _present(data, setting.key):
                # What the file says replaces a free mapping's default; merging would keep the default's entries.
                OmegaConf.update(tree, setting.key, [] if setting.type.__origin__ is list else {}, merge=False)
        tree = OmegaConf.merge(tree, _without_empty(data, Config))
        OmegaConf.resolve(tree)
        missing = sorted(OmegaConf.missing_keys(tree))
        _refuse((Problem(key, f"needs a value: {_doc(key)}") for key in missing), origin)
        config = OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        key = error.full_key or ""
        message = (error.msg or str(error)).splitlines()[0]
        raise _error([Problem(key, message)], origin) from error
    assert isinstance(config, Config)
    return config


def _without_empty(data: Any, section: type) -> Any:
    """Sections whose lines are all commented out read as nothing; they mean the defaults."""
    if not isinstance(data, dict):
        return data
    known = fields.section_fields(section)
    return {
        key: _without_empty(value, known[key][0]) if fields.is_section(known[key][0]) else value
        for key, value in data.items()
        if value is not None
    }


def _present(data: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(data, dict) or data.get(part) is None:
            return False
        data = data[part]
    return True


def _doc(key: str) -> str:
    kind: Any = Config
    doc = ""
    for part in re.sub(r"\[\d+\]", ".[]", key).split("."):
        if part == "[]":
            kind = fields.element_type(kind)
        else:
            kind, field = fields.section_fields(kind)[part]
            doc = field.metadata.get("doc", "")
    return doc


def _late_secrets(config: Config) -> Iterable[Problem]:
    """Secrets that an interpolation brought in from the environment."""
    for key, value in flat(config).items():
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, dict | list):
                stack += item.values() if isinstance(item, dict) else item
            elif secrets.secret_value(item):
                yield Problem(key, f"this looks like a secret, and a config is no place for one; {secrets.ADVICE}")


def _refuse(problems: Iterable[Problem], origin: dict[str, str]) -> None:
    found = list(problems)
    if found:
        raise _error(found, origin)


def _error(problems: list[Problem], origin: dict[str, str]) -> ConfigError:
    lines = [_line(problem, origin) for problem in problems]
    more = [f"and {len(lines) - 6} more"] if len(lines) > 6 else []
    return ConfigError(lines[0], hint="\n".join(["also: " + line for line in lines[1:6]] + more))


def _line(problem: Problem, origin: dict[str, str]) -> str:
    where = _written(problem.key, origin)
    head = f"{one_line(problem.key)[:200]}: " if problem.key else ""
    return head + one_line(problem.message) + (f" ({where})" if where else "")


def _written(key: str, origin: dict[str, str]) -> str:
    """Where a key, or what it is part of, was written: "FILE line N", "command line" or ""."""
    for name in _upwards(key):
        if name in origin:
            file, colon, line = origin[name].rpartition(":")
            return f"{file} line {line}" if colon else origin[name]
    return ""


def _origin_of(key: str, data: dict[str, Any], origin: dict[str, str]) -> str:
    if not _present(data, key):
        return DEFAULT
    return next(origin[name] for name in _upwards(key) if name in origin)


def _upwards(key: str) -> Iterator[str]:
    """A dotted name, then what it is part of: "a.b[0]", "a.b", "a"."""
    while key:
        yield key
        key = key[: max(key.rfind("."), key.rfind("["), 0)]
