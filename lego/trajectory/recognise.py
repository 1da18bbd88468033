"""Which family a tokenizer speaks, where nobody has said so."""

from __future__ import annotations

from typing import Any

from lego.errors import RenderError
from lego.trajectory.families import FAMILIES, open_renderer
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.template import templated_text
from lego.trajectory.tokenizer import Tokenizer, token_id
from lego.trajectory.turns import tool_dicts, turn_of

_UNCHECKED = ("tiny-chatml",)
"""Families that no tokenizer's own template writes."""


def family_of(tokenizer: Tokenizer, model_name: str = "") -> str:
    """The family of a tokenizer: what the `renderers` package says of the model's exact name, else the family whose
    ids are those of the tokenizer's own chat template on a few conversations.

    Raises RenderError (a user fault) where there is none, with what to set.
    """
    from renderers.base import MODEL_RENDERER_MAP

    known = MODEL_RENDERER_MAP.get(model_name or tokenizer.name_or_path)
    if known:
        return known
    template = getattr(tokenizer, "chat_template", None)
    near = [name for name, family in FAMILIES.items() if _has(tokenizer, family.marks) and name not in _UNCHECKED]
    if not isinstance(template, str):
        raise RenderError(
            f"the tokenizer of {tokenizer.name_or_path} has no chat template by which to know its family",
            hint=f"set policy.renderer to {_or(near)}, or put its chat_template.jinja beside it",
            fault="user",
        )
    others = sorted(set(MODEL_RENDERER_MAP.values()) - set(FAMILIES))
    for name in [*near, *others]:
        if _speaks(tokenizer, template, name):
            return name
    raise RenderError(
        f"the chat template of {tokenizer.name_or_path} is not that of a known family",
        hint=f"set policy.renderer to {_or(near)} if it should speak that, or to default: by its own template, "
        "every call rendered afresh",
        fault="user",
    )


def _speaks(tokenizer: Tokenizer, template: str, name: str) -> bool:
    """Whether a family's ids are those of the tokenizer's own template, wherever that has an answer."""
    try:
        renderer = open_renderer(tokenizer, name)
    except (RenderError, TypeError, AttributeError, LookupError, RuntimeError, OSError):
        return False
    compared = 0
    shows_tools = name not in FAMILIES or FAMILIES[name].shows_tools
    for messages, tools in _conversations():
        turns, offered = [turn_of(message) for message in messages], tool_dicts(tools)
        try:
            text = templated_text(template, _marks(tokenizer), turns, offered, True)
            if tools and not shows_tools:
                # A family that hides tools is not that of a template that shows them.
                if text != templated_text(template, _marks(tokenizer), turns, None, True):
                    return False
                continue
        except RenderError:
            continue
        try:
            ids = renderer.render_ids(turns, tools=offered, add_generation_prompt=True)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
            return False
        if list(ids) != list(tokenizer.encode(text, add_special_tokens=False)):
            return False
        compared += 1
    return compared > 0


def _conversations() -> list[tuple[list[Message], list[Tool]]]:
    """What families differ in: earlier thinking, values that are no strings, several results."""
    system, ask, on = Message("system", "Be brief."), Message("user", "q"), Message("user", " on\n")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "description": "x"}, "b": {"type": "boolean"}},
        "required": ["a"],
    }
    tools = [Tool("t", "Does t.", schema)]
    calls = (ToolCall("i", "t", '{"a": "1", "b": true}'), ToolCall("j", "t", '{"a": "é<", "b": null}'))
    results = [Message("tool", "r", tool_call_id="i"), Message("tool", "s", tool_call_id="j")]
    one = Message("assistant", "", "why", calls[:1])
    return [
        ([ask], []),
        ([system, ask, Message("assistant", "c", "why"), on], []),
        ([ask, Message("assistant", "c"), on, Message("assistant", "d"), on], []),
        ([system, ask], tools),
        ([ask, one, results[0]], tools),
        ([ask, one, results[0], Message("assistant", "so"), on], tools),
        ([system, ask, Message("assistant", "c", "why", calls), *results], tools),
    ]


def _marks(tokenizer: Tokenizer) -> dict[str, str]:
    named: Any = getattr(tokenizer, "special_tokens_map", {})
    return {key: value for key, value in named.items() if isinstance(value, str)}


def _has(tokenizer: Tokenizer, marks: tuple[str, ...]) -> bool:
    return all(token_id(tokenizer, mark) is not None for mark in marks)


def _or(names: list[str]) -> str:
    return " or ".join(names) or "a name the renderers package knows"
