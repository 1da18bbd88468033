"""What is wrong or unknown in a file, by its dotted keys."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, ValidationError


def in_words(error: ValidationError) -> str:
    """What is wrong, each with the dotted key where it is."""
    said = []
    for one in error.errors():
        text = one["msg"].removeprefix("Value error, ")
        said.append(": ".join(part for part in (".".join(map(str, one["loc"])), text[:1].lower() + text[1:]) if part))
    return "; ".join(said)


def unknown(model: BaseModel, where: str) -> Iterator[str]:
    """Dotted keys that a model does not have, at any depth."""
    yield from (f"{where}{key}" for key in model.model_extra or {})
    for name in type(model).model_fields:
        value = getattr(model, name)
        several = isinstance(value, list)
        for number, one in enumerate(value if several else [value]):
            if isinstance(one, BaseModel):
                yield from unknown(one, f"{where}{name}.{f'{number}.' if several else ''}")
