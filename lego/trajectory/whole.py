"""Replies that are read as a whole, by the parser of the `renderers` package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lego.trajectory.arrays import Finish
from lego.trajectory.messages import Message, ToolCall
from lego.trajectory.parse import CallArguments, CallEnd, CallStart, Delta, Reply, TextDelta, ThinkingDelta
from lego.trajectory.tokenizer import Tokenizer
from lego.trajectory.turns import Turn


class WholeParser:
    """For families without a streaming parser here: says everything at the end, by the family's own parser."""

    def __init__(
        self, tokenizer: Tokenizer, renderer: Any, tools: Sequence[Turn] | None, prompt_ids: Sequence[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._tools = tools
        self._prompt_ids = list(prompt_ids)
        self._ids: list[int] = []

    def feed(self, ids: Sequence[int]) -> list[Delta]:
        self._ids.extend(ids)
        return []

    def finish(self, finish: Finish) -> Reply:
        try:
            parsed = self._renderer.parse_response(self._ids, tools=self._tools, prompt_ids=self._prompt_ids)
            return whole_reply(parsed)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            stops = set(self._renderer.get_stop_token_ids())
            end = next((at for at, token in enumerate(self._ids) if token in stops), len(self._ids))
            text = self._tokenizer.decode(self._ids[:end], skip_special_tokens=False)
            said = (TextDelta(text),) if text else ()
            return Reply(Message("assistant", text), (f"the family's parser failed: {error!r}",), said)


def whole_reply(parsed: Any) -> Reply:
    """A `renderers` ParsedResponse as a Reply; calls that are not OK become text."""
    tail: list[Delta] = []
    content: str = parsed.content or ""
    calls: list[ToolCall] = []
    malformed: list[str] = []
    for number, attempt in enumerate(parsed.tool_calls):
        if str(attempt.status) == "ok" and isinstance(attempt.name, str):
            arguments = {} if attempt.arguments is None else attempt.arguments
            text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            calls.append(ToolCall("", attempt.name, text))
        else:
            malformed.append(f"call {number}: {attempt.status}")
            content += attempt.raw
    reasoning = parsed.reasoning_content or None
    if reasoning:
        tail.append(ThinkingDelta(reasoning))
    if content:
        tail.append(TextDelta(content))
    for index, call in enumerate(calls):
        tail += [CallStart(index, call.name), CallArguments(index, call.arguments), CallEnd(index)]
    return Reply(Message("assistant", content, reasoning, tuple(calls)), tuple(malformed), tuple(tail))
