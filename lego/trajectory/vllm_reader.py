"""A folder's own chat template, with replies read by vLLM's parsers: for families that `renderers` lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lego.trajectory.tokenizer import Tokenizer
from lego.trajectory.turns import Turn

PREFIX = "vllm:"


class VllmReader:
    """A renderer of the `renderers` protocol: `base` writes, vLLM's parsers read each reply whole, as its server does.

    parsers: `TOOLS` or `TOOLS+THINKING`, vLLM's names for --tool-call-parser and --reasoning-parser; one may be empty.
    Raises ValueError where vllm is not installed, has no such parser, or the parser does not fit the tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer, base: Any, parsers: str) -> None:
        tools, _, thinking = parsers.partition("+")
        if not tools and not thinking:
            raise ValueError("say which parsers, as in vllm:granite or vllm:olmo3+olmo3")
        try:
            from vllm.reasoning import ReasoningParserManager
            from vllm.tool_parsers import ToolParserManager
        except ImportError as error:
            raise ValueError(f"vLLM's parsers need vLLM in this environment (docs/vllm.md): {error}") from error
        self._tokenizer = tokenizer
        self._tools = _of(ToolParserManager.get_tool_parser, ToolParserManager, tools)
        self._thinking = _of(ReasoningParserManager.get_reasoning_parser, ReasoningParserManager, thinking)
        self._stops = frozenset(base.get_stop_token_ids())
        self.get_stop_token_ids = base.get_stop_token_ids
        self.render, self.render_ids = base.render, base.render_ids
        self.bridge_to_next_turn = base.bridge_to_next_turn
        try:
            self.parse_response([], tools=None)
        except RuntimeError as error:
            raise ValueError(str(error)) from error

    def parse_response(
        self, token_ids: Sequence[int], *, tools: Sequence[Turn] | None, prompt_ids: Sequence[int] | None = None
    ) -> Any:
        """The reply as a `renderers` ParsedResponse. What a parser cannot read stays text."""
        from renderers import ParsedResponse, ParsedToolCall
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request: Any = ChatCompletionRequest(messages=[], tools=list(tools) if tools else None)
        parser = None if self._tools is None else self._tools(self._tokenizer, request.tools)
        if parser is not None and tools:
            request = parser.adjust_request(request)
        end = next((at for at, token in enumerate(token_ids) if token in self._stops), len(token_ids))
        text = self._tokenizer.decode(list(token_ids[:end]), skip_special_tokens=request.skip_special_tokens)
        reasoning: str | None = None
        if self._thinking is not None:
            reasoning, rest = self._thinking(self._tokenizer).extract_reasoning(text, request)
            text = rest or ""
        if parser is None or not tools:
            return ParsedResponse(text, reasoning)
        read = parser.extract_tool_calls(text, request)
        calls = [ParsedToolCall("", call.function.name, call.function.arguments) for call in read.tool_calls]
        return ParsedResponse(read.content or "", reasoning, calls)


def _of(get: Any, manager: Any, name: str) -> Any:
    """The parser's class; None for no name. Raises ValueError with the names there are."""
    if not name:
        return None
    try:
        return get(name)
    except KeyError:
        known = ", ".join(sorted(manager.list_registered()))
        raise ValueError(f"vLLM has no parser {name!r}; it has {known}") from None
