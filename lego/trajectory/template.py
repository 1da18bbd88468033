"""A tokenizer's own chat template, read as transformers reads it, which takes seconds to import."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from lego.errors import RenderError
from lego.trajectory.turns import Turn

DATE = "2024-07-26"
"""The day that templates which name one are told: the same conversation is the same ids on every day. It is what
Llama 3's own template says where it cannot ask."""

_DATE_PARTS = {"%Y": "2024", "%m": "07", "%d": "26", "%b": "Jul", "%B": "July", "%y": "24"}


def templated_text(
    template: str, marks: dict[str, str], messages: list[Turn], tools: list[Turn] | None, add_generation_prompt: bool
) -> str:
    """What the template writes. marks: `bos_token` and the like, by name.

    Raises RenderError where it cannot be read or refuses the conversation.
    """
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what a model said; it writes nothing itself."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _date
    try:
        return environment.from_string(template).render(
            messages=messages, tools=tools, add_generation_prompt=add_generation_prompt, **marks
        )
    except (TemplateError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError) as error:
        raise RenderError(f"the chat template refuses this conversation: {error}") from error


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _date(form: str) -> str:
    for part, value in _DATE_PARTS.items():
        form = form.replace(part, value)
    return form


def _refuse(message: str) -> NoReturn:
    raise ValueError(message)
