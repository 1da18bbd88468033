"""Slugs: the part of an article's URL that is made from its title."""

import re

MAX_LENGTH = 60
_SEPARATORS = re.compile(r"[^a-z0-9]+")


def slugify(title, max_length=MAX_LENGTH):
    """Lower-case words joined by dashes, cut at a word boundary to at most `max_length` characters."""
    text = title.lower()
    slug = _SEPARATORS.sub("-", text).strip("-")
    if len(slug) <= max_length:
        return slug
    cut = slug[: max_length + 1].rpartition("-")[0]
    return cut or slug[:max_length]


def unique_slug(title, taken):
    """A slug that is not in `taken`: a number is appended where the plain one is gone."""
    slug = slugify(title) or "untitled"
    candidate, number = slug, 2
    while candidate in taken:
        candidate = f"{slug}-{number}"
        number += 1
    return candidate
