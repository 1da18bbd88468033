"""`{{ dotted.name }}` and `{{ dotted.name | filter }}` in HTML."""

import re

from templates.filters import FILTERS

_TAG = re.compile(r"\{\{\s*([\w.]+)\s*(?:\|\s*(\w+)\s*)?\}\}")


class TemplateError(Exception):
    pass


def _lookup(name, context):
    value = context
    for part in name.split("."):
        value = value[part]
    return value


def render(template, context, strict=False):
    """The template with every tag replaced. Raises TemplateError for an unknown filter."""
    while True:
        match = _TAG.search(template)
        if match is None:
            return template
        name, chosen = match.groups()
        value = _lookup(name, context)
        if chosen and chosen not in FILTERS:
            raise TemplateError(f"no such filter: {chosen}")
        text = FILTERS[chosen](value) if chosen else str(value)
        template = template[: match.start()] + text + template[match.end() :]
