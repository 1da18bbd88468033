"""Tool calls of the form that Qwen3-Coder and Qwen3.5 write: `<function=NAME>` and one tag for each parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lego.trajectory.calls import CallText
from lego.trajectory.decoding import Channel, held_back
from lego.trajectory.messages import Tool

_FUNCTION, _PARAMETER, _END, _FUNCTION_END = "<function=", "<parameter=", "</parameter>", "</function>"


class XmlReader:
    """`<function=NAME>`, then for each argument `<parameter=KEY>`, VALUE, `</parameter>`.

    Arguments are said as the JSON object that they mean. A value that the tool declares a string streams, without
    the white space around it. Any other value is said when its tag closes: as the JSON it is, or as a string where
    it is none.
    """

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.named = False
        self._tools = tools
        self._properties: dict[str, Any] = {}
        self._text = ""
        self._said: list[str] = []
        self._name = ""
        self._functions = 0
        self._parameter: str | None = None
        self._value: Channel | None = None
        self._buffer = ""
        self._begun = False
        self._over = False
        self._faults: list[str] = []

    def feed(self, text: str) -> CallText:
        self._text += text
        self._said = []
        name = None if self.named else self._find_name()
        if self.named:
            self._read()
        return CallText(name, "".join(self._said))

    def end(self, closed: bool) -> tuple[CallText, str]:
        self._said = []
        if not self.named:
            return CallText(), "no function"
        if self._parameter is not None:
            self._faults.append(f"parameter {self._parameter} not closed")
            if closed:
                self._say_value(self._text.partition(_FUNCTION_END)[0])
                self._close_value()
        if closed:
            self._said.append("}" if self._begun else "{}")
        return CallText(None, "".join(self._said)), ", ".join(self._faults)

    def _find_name(self) -> str | None:
        """The name of the first function tag. What stands before the tag stays: parameters may."""
        begin = self._text.find(_FUNCTION)
        while begin != -1:
            end = self._text.find(">", begin)
            if end == -1:
                return None
            name = self._text[begin + len(_FUNCTION) : end]
            if name:
                self.named = True
                schema = self._tools[name].parameters if name in self._tools else {}
                properties = schema.get("properties")
                self._properties = properties if isinstance(properties, dict) else {}
                return name
            begin = self._text.find(_FUNCTION, end)
        return None

    def _read(self) -> None:
        """Read on as far as the text is certain."""
        while not self._over:
            if self._parameter is None and not self._open_value():
                return
            end = self._text.find(_END)
            if end == -1:
                if self._value is not None:
                    # Where the parameter is never closed, its value ends with the function.
                    held, function_end = held_back(self._text, _END, _FUNCTION_END), self._text.find(_FUNCTION_END)
                    sure = len(self._text) - held if function_end == -1 else function_end
                    self._say_value(self._text[:sure])
                    self._text = self._text[sure:]
                return
            self._say_value(self._text[:end])
            self._close_value()
            self._text = self._text[end + len(_END) :]

    def _open_value(self) -> bool:
        """Go to the next parameter; False where it has not begun yet."""
        while True:
            begin, other = self._text.find(_PARAMETER), self._text.find(_FUNCTION)
            if other != -1 and (begin == -1 or other < begin):
                self._functions += 1
                if self._functions > 1:
                    self._faults.append("a second function in one block")
                    self._over = True
                    return False
                self._text = self._text[other + len(_FUNCTION) :]
                continue
            if begin == -1:
                self._text = self._text[len(self._text) - held_back(self._text, _PARAMETER, _FUNCTION) :]
                return False
            end = self._text.find(">", begin)
            if end == -1:
                self._text = self._text[begin:]
                return False
            key, self._text = self._text[begin + len(_PARAMETER) : end], self._text[end + 1 :]
            if not key:
                continue
            self._parameter = key
            self._buffer = ""
            self._said.append((", " if self._begun else "{") + json.dumps(key, ensure_ascii=False) + ": ")
            self._begun = True
            declared = self._properties.get(key)
            if isinstance(declared, dict) and declared.get("type") in ("string", ["string"]):
                self._value = Channel(strip=True)
                self._said.append('"')
            return True

    def _say_value(self, text: str) -> None:
        if self._value is None:
            self._buffer += text
            return
        self._said.append(json.dumps(self._value.feed(text), ensure_ascii=False)[1:-1])

    def _close_value(self) -> None:
        key, self._parameter = self._parameter, None
        value, self._value = self._value, None
        if value is not None:
            self._said.append('"')
            return
        text = self._buffer.strip()
        try:
            json.loads(text, parse_constant=_refuse)
        except (ValueError, RecursionError):
            if not _allows_text(self._properties.get(key or "")):
                self._faults.append(f"parameter {key} is not JSON")
            text = json.dumps(text, ensure_ascii=False)
        self._said.append(text)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _allows_text(declared: Any) -> bool:
    branches = (declared.get("anyOf") or declared.get("oneOf") or []) if isinstance(declared, dict) else []
    return any(isinstance(branch, dict) and branch.get("type") == "string" for branch in branches)
