"""Just enough of the Dockerfile language to change what its stages start from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FROM = re.compile(r"^(\s*FROM\s+(?:--\S+\s+)*)(\S+)(.*)$", re.IGNORECASE | re.DOTALL)
_STAGE = re.compile(r"\s+AS\s+(\S+)", re.IGNORECASE)
_ARG = re.compile(r"^\s*ARG\s+(\w+)=(\S+)", re.IGNORECASE)
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")


@dataclass(frozen=True)
class Rewritten:
    """`final_base` is the image the last stage stands on in the end, `final_user` its last USER ("" for none)."""

    text: str
    final_base: str
    final_user: str


def rewrite(text: str, replace: Mapping[str, str]) -> Rewritten:
    """Put `replace[image]` in the place of each `FROM image`, matched with and without Docker Hub's prefixes.

    Raises ValueError when there is no FROM.
    """
    known = {canonical(image): target for image, target in replace.items()}
    defaults: dict[str, str] = {}
    stages: dict[str, tuple[str, str]] = {}
    output: list[str] = []
    base, user, name = "", "", ""
    for instruction in instructions(text):
        word = instruction.split(maxsplit=1)[0].upper() if instruction.strip() else ""
        if word == "ARG" and not base:
            if found := _ARG.match(instruction):
                defaults[found[1]] = found[2].strip("\"'")
        elif word == "FROM" and (found := _FROM.match(instruction)):
            stages[name] = (base, user)
            image = _VARIABLE.sub(lambda m: defaults.get(m[1] or m[3], m[2] or ""), found[2]).strip("\"'")
            if image in stages:
                base, user = stages[image]
            else:
                base, user = known.get(canonical(image), image), ""
                if base != image:
                    instruction = f"{found[1]}{base}{found[3]}"
            stage = _STAGE.search(found[3])
            name = stage[1] if stage else str(len(stages) - 1)
        elif word == "USER":
            user = instruction.split(maxsplit=1)[1].strip()
        output.append(instruction)
    if not base:
        raise ValueError("there is no FROM")
    return Rewritten("\n".join(output) + "\n", base, user)


def instructions(text: str) -> Iterator[str]:
    """Each instruction with its continuation lines and here-documents; comments and blank lines pass as they are."""
    lines = text.splitlines()
    start = 0
    while start < len(lines):
        end = start + 1
        if lines[start].strip() and not _is_comment(lines[start]):
            # A comment between continuation lines belongs to the instruction and does not end it.
            goes_on = _continues(lines[start])
            while goes_on and end < len(lines):
                goes_on = _is_comment(lines[end]) or _continues(lines[end])
                end += 1
            if re.match(r"\s*(RUN|COPY|ADD)\b", lines[start], re.IGNORECASE):
                for word in _HEREDOC.findall("\n".join(lines[start:end])):
                    closing = (at for at in range(end, len(lines)) if lines[at].strip() == word)
                    end = next(closing, end - 1) + 1
        yield "\n".join(lines[start:end])
        start = end


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _continues(line: str) -> bool:
    return line.rstrip().endswith("\\")


def canonical(image: str) -> str:
    """An official image's name without its optional `HOST/library/`, `:latest` written out."""
    image = re.sub(r"^(?:[\w-]+(?:\.[\w-]+)+/)?library/", "", image)
    if "@" not in image and ":" not in image.rsplit("/", 1)[-1]:
        image += ":latest"
    return image
