"""The text inside a tool call's marks, read as it streams."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from lego.trajectory.messages import Tool


@dataclass(frozen=True)
class CallText:
    """What became readable: the call's `name`, once, and the next piece of its `arguments` (JSON text)."""

    name: str | None = None
    arguments: str = ""


class CallReader(Protocol):
    """Reads one call. `named`: its name has been said, so it is a call and not text."""

    named: bool

    def __init__(self, tools: Mapping[str, Tool]) -> None: ...

    def feed(self, text: str) -> CallText: ...

    def end(self, closed: bool) -> tuple[CallText, str]:
        """The call's text has ended, by its closing mark or (not `closed`) with the reply. What is left to say, and
        what was wrong with the call (empty: nothing)."""
        ...


class JsonValue:
    """Finds where the first JSON value of a stream ends; `feed` gives the part of a text that belongs to it."""

    def __init__(self) -> None:
        self.done = False
        self._begun = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> str:
        if not self._begun:
            text = text.lstrip()
        for at, char in enumerate(text):
            if self.done:
                return text[:at]
            self._begun = True
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
                    self.done = self._depth == 0
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif self._depth == 0 and (char in ",}]" or char.isspace()):
                self.done = True
                return text[:at]
            elif char in "}]":
                self._depth -= 1
                self.done = self._depth == 0
        return text


class HermesReader:
    """`{"name": NAME, "arguments": JSON}`. Arguments stream, byte for byte as sampled, once a leading name is read;
    a call whose keys come in another order is said when it ends."""

    KEYS: tuple[str, ...] = ("arguments",)
    """What the arguments may be called; where a call has several of them, the first here counts."""

    _LONGEST_HEAD = 1024

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.named = False
        self._head = _head(self.KEYS)
        self._name = ""
        self._text = ""
        self._value = JsonValue()
        self._arguments: list[str] = []
        self._buffered = False

    def feed(self, text: str) -> CallText:
        if self.named:
            self._text += text
            return CallText(None, self._more(text))
        head = None if self._buffered else self._head.match(self._text + text, 0, self._LONGEST_HEAD)
        self._text += text
        self._buffered = head is None and len(self._text) >= self._LONGEST_HEAD
        name = loads(head.group(1)) if head else None
        if not head or not isinstance(name, str) or not name:
            return CallText()
        self.named = True
        self._name = name
        return CallText(name, self._more(self._text[head.end() :]))

    def end(self, closed: bool) -> tuple[CallText, str]:
        whole = loads(self._text)
        if not isinstance(whole, dict):
            return CallText(), "invalid JSON"
        name = whole.get("name")
        arguments: object = next((whole[key] for key in self.KEYS if key in whole), {})
        if self.named:
            same = name == self._name and arguments == loads("".join(self._arguments))
            return CallText(), "" if same else "invalid JSON"
        if not isinstance(name, str) or not name:
            return CallText(), "no name"
        self.named = True
        return CallText(name, json.dumps(arguments, ensure_ascii=False)), ""

    def _more(self, text: str) -> str:
        said = "" if self._value.done else self._value.feed(text)
        self._arguments.append(said)
        return said


class LlamaReader(HermesReader):
    """The same with the arguments called `parameters`, as Llama 3 writes them, and with no mark around it: what names
    no tool is no failed call."""

    KEYS = ("parameters", "arguments")

    def end(self, closed: bool) -> tuple[CallText, str]:
        said, fault = super().end(closed)
        return said, fault if self.named or '"name"' in self._text else ""


@cache
def _head(keys: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf'\s*\{{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:{"|".join(keys)})"\s*:')


class PlainReader:
    """`NAME`, a newline, and TEXT: the call's one string argument verbatim (see `string_argument`)."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.named = False
        self._tools = tools
        self._name = ""
        self._newline = False
        self._key: str | None = None
        self._opened = False

    def feed(self, text: str) -> CallText:
        if self._newline:
            return CallText(None, self._more(text)) if self.named else CallText()
        name, newline, rest = text.partition("\n")
        self._name += name
        if not newline:
            return CallText()
        self._newline = True
        self.named = bool(self._name.strip())
        if not self.named:
            return CallText()
        self._key = string_argument(self._tools.get(self._name))
        return CallText(self._name, self._more(rest))

    def end(self, closed: bool) -> tuple[CallText, str]:
        if not self._name.strip():
            return CallText(), "no name"
        if not closed:
            return CallText(), ""
        if not self._newline:
            self.named = True
            return CallText(self._name, "{}"), ""
        if self._opened:
            return CallText(None, '"}'), ""
        return CallText(None, "{}" if self._key is None else json.dumps({self._key: ""})), ""

    def _more(self, text: str) -> str:
        if not text:
            return ""
        head = "" if self._opened else "{" + json.dumps(self._key or DEFAULT_ARGUMENT, ensure_ascii=False) + ': "'
        self._opened = True
        return head + json.dumps(text, ensure_ascii=False)[1:-1]


DEFAULT_ARGUMENT = "command"


def string_argument(tool: Tool | None) -> str | None:
    """The argument that a plain call's text is: the tool's first required string property, else its first string
    property; None where it has none, `command` where the tool is unknown."""
    if tool is None:
        return DEFAULT_ARGUMENT
    properties = tool.parameters.get("properties") or {}
    strings = [name for name, value in properties.items() if isinstance(value, dict) and value.get("type") == "string"]
    required = [name for name in tool.parameters.get("required") or [] if name in strings]
    return (required or strings or [None])[0]


def loads(text: str) -> object:
    """The JSON value of a text, or None."""
    try:
        return json.loads(text.strip())
    except (ValueError, RecursionError):
        return None
