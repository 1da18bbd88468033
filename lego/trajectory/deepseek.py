"""Replies of DeepSeek V3: thinking between written tags, text, then one section of calls between single ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lego.trajectory.arrays import Finish
from lego.trajectory.calls import CallText, JsonValue
from lego.trajectory.decoding import Decoder, held_back
from lego.trajectory.messages import Tool
from lego.trajectory.parse import Delta, Reply, Speaker
from lego.trajectory.tokenizer import Tokenizer, token_id

_THINK, _THINK_END = "<think>", "</think>"


@dataclass(frozen=True)
class SectionMarks:
    """The ids of `<｜tool▁calls▁begin｜>` and the other marks of a section of calls."""

    stop_ids: frozenset[int]
    section: int | None
    section_end: int | None
    call: int | None
    call_end: int | None
    sep: int | None


def section_marks(tokenizer: Tokenizer, stop_ids: frozenset[int]) -> SectionMarks:
    names = ("tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end", "tool▁sep")
    return SectionMarks(stop_ids, *(token_id(tokenizer, f"<｜{name}｜>") for name in names))


class FencedReader:
    """`NAME`, a newline, and the arguments as JSON in a fence of code. They stream byte for byte as sampled."""

    _FENCE = re.compile(r"```(?:json)?\s*([\s\S]*?)\s*```$")

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self.named = False
        self._text = ""
        self._inside = False
        self._value = JsonValue()
        self._arguments: list[str] = []

    def feed(self, text: str) -> CallText:
        self._text += text
        if self._inside:
            return CallText(None, self._more(text))
        name, newline, rest = self._text.lstrip().partition("\n")
        if not newline:
            return CallText()
        said = None if self.named else name.strip()
        self.named = True
        rest = rest.lstrip()
        if "```json".startswith(rest):
            return CallText(said)
        self._inside = True
        return CallText(said, self._more(rest[3:].removeprefix("json") if rest.startswith("```") else rest))

    def end(self, closed: bool) -> tuple[CallText, str]:
        name, _, rest = self._text.strip().partition("\n")
        if not name:
            return CallText(), "no name"
        said = None if self.named else name.strip()
        self.named = True
        rest = rest.strip()
        fenced = self._FENCE.match(rest)
        arguments = fenced.group(1).strip() if fenced else rest
        left = ""
        if not self._inside and closed:
            left = arguments or "{}"
            self._arguments.append(left)
        same = "".join(self._arguments).strip() == (arguments or "{}")
        return CallText(said, left), "" if same and _is_json(arguments or "{}") else "invalid JSON"

    def _more(self, text: str) -> str:
        said = "" if self._value.done else self._value.feed(text)
        self._arguments.append(said)
        return said


class DeepSeekParser:
    """Thinking counts only where it opens the reply; a section inside it is thought, not called. Of what follows the
    section nothing is said."""

    def __init__(self, tokenizer: Tokenizer, marks: SectionMarks, tools: Sequence[Tool]) -> None:
        self._tokenizer = tokenizer
        self._marks = marks
        self._tools = {tool.name: tool for tool in tools}
        self._speaker = Speaker(strip=True)
        self._run = Decoder(tokenizer)
        self._state = "start"
        self._held = ""
        self._done = False

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        for token in ids:
            self._done = self._done or token in self._marks.stop_ids
            if self._done:
                break
            self._take(token)
        return self._speaker.take()

    def finish(self, finish: Finish) -> Reply:
        self._end_run(last=True)
        self._speaker.close_call(closed=False, finish=finish)
        return self._speaker.reply()

    def _take(self, token: int) -> None:
        marks = self._marks
        if token == marks.section and self._state in ("start", "think", "text"):
            self._end_run()
            if self._state != "think":
                self._end_run(last=True)
                self._state = "between"
                return
        elif token == marks.call and self._state == "between":
            self._speaker.open_call(FencedReader(self._tools), self._written(token))
            self._state = "head"
            return
        elif token == marks.sep and self._state == "head":
            self._end_run()
            self._speaker.aside(self._written(token))
            self._state = "call"
            return
        elif token in (marks.call_end, marks.section_end) and self._state in ("head", "call", "between"):
            self._end_run()
            closed = token == marks.call_end
            if self._state != "between":
                self._speaker.close_call(closed, self._written(token) if closed else "")
            self._state = "between" if closed else "over"
            return
        self._say(self._run.feed([token]))

    def _end_run(self, last: bool = False) -> None:
        self._say(self._run.feed([], last=True), last)
        self._run = Decoder(self._tokenizer)

    def _say(self, text: str, last: bool = False) -> None:
        if self._state == "call":
            self._speaker.call(text)
        elif self._state == "head":
            self._speaker.aside(text)
        elif self._state in ("start", "think", "text"):
            self._say_open(self._held + text, last)

    def _say_open(self, text: str, last: bool) -> None:
        self._held = ""
        if self._state == "start":
            begun = text.lstrip()
            if begun.startswith(_THINK):
                self._state, text = "think", begun.removeprefix(_THINK)
            elif _THINK.startswith(begun) and not last:
                self._held = text
                return
            else:
                self._state = "text"
        if self._state == "think":
            thought, closed, after = text.partition(_THINK_END)
            held = 0 if closed or last else held_back(thought, _THINK, _THINK_END)
            self._held = thought[len(thought) - held :]
            self._speaker.thinking(thought[: len(thought) - held].replace(_THINK, ""))
            if not closed:
                return
            self._state, text = "text", after
        self._speaker.text(text)

    def _written(self, mark: int) -> str:
        return self._tokenizer.decode([mark], skip_special_tokens=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
