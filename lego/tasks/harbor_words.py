"""What is wrong or unknown in a file, by its dotted keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pydantic import BaseModel, ValidationError

from lego.errors import ConfigError
from lego.plain import one_line


def in_words(error: ValidationError, names: Mapping[str, str] | None = None) -> str:
    """What is wrong, each with the dotted key where it is. `names`: how the first word of a key is written, where that
    is another."""
    said = []
    for one in error.errors():
        loc = [(names or {}).get(str(part), part) for part in one["loc"][:1]] + list(one["loc"][1:])
        text = "no such key" if one["type"] == "extra_forbidden" else one["msg"].removeprefix("Value error, ")
        where = one_line(".".join(map(str, loc)))
        said.append(": ".join(part for part in (where, text[:1].lower() + text[1:]) if part))
    return "; ".join(said)


def options_error(source: str, error: ValidationError, hint: str) -> ConfigError:
    """The error for a source's options that are not what they should be."""
    strange = [
        str(one["loc"][0]) for one in error.errors() if one["type"] == "extra_forbidden" and len(one["loc"]) == 1
    ]
    said = f"no such option: {', '.join(strange)}" if strange else f"options: {in_words(error)}"
    return ConfigError(f"tasks: {source}: {said}", hint=hint)


def unknown(model: BaseModel, where: str) -> Iterator[str]:
    """Dotted keys that a model does not have, at any depth."""
    yield from (f"{where}{key}" for key in model.model_extra or {})
    for name in type(model).model_fields:
        value = getattr(model, name)
        several = isinstance(value, list)
        for number, one in enumerate(value if several else [value]):
            if isinstance(one, BaseModel):
                yield from unknown(one, f"{where}{name}.{f'{number}.' if several else ''}")
