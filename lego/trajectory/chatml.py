"""Renderers for what the `renderers` package lacks: plain ChatML, and the demo policy's own short form of it.

Both write a turn as `<|im_start|>ROLE\\nCONTENT<|im_end|>\\n`. The ids of a turn never depend on other turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from renderers.base import ParsedResponse, ParsedToolCall, RenderedTokens, ToolCallParseStatus

from lego.errors import RenderError
from lego.trajectory.calls import string_argument
from lego.trajectory.messages import Tool
from lego.trajectory.tokenizer import Tokenizer, token_id

Turn = dict[str, Any]
Piece = tuple[list[int], bool]


class ChatMLRenderer:
    """ChatML without tools, as SmolLM2 writes it; tool results are user turns; text is taken and given verbatim.

    default_system: the system turn of a conversation that begins without one; empty for none.
    Thinking is not part of the format and is left out of rendered history.
    """

    is_prefix_stable = True
    has_tools = False
    NAME, START, END, ASSISTANT, END_OF_TEXT = "chatml", "<|im_start|>", "<|im_end|>", "assistant", "<|endoftext|>"

    def __init__(self, tokenizer: Tokenizer, default_system: str = "") -> None:
        self._tokenizer = tokenizer
        self._default_system = default_system
        self._start = self._required(self.START)
        self._end = self._required(self.END)
        self._newline = self._encode("\n")
        self._generation = [self._start, *self._encode(self.ASSISTANT + "\n")]
        others = (token_id(tokenizer, self.END_OF_TEXT), tokenizer.eos_token_id)
        self._stops = list(dict.fromkeys([self._end, *(i for i in others if i is not None)]))

    def get_stop_token_ids(self) -> list[int]:
        return list(self._stops)

    def render(
        self, messages: list[Turn], *, tools: list[Turn] | None = None, add_generation_prompt: bool = False
    ) -> RenderedTokens:
        self._check_tools(tools)
        return self._render(self._opening(messages), messages, tools, add_generation_prompt)

    def _render(
        self, opening: list[int], messages: list[Turn], tools: list[Turn] | None, add_generation_prompt: bool
    ) -> RenderedTokens:
        ids = list(opening)
        indices = [-1] * len(ids)
        sampled = [False] * len(ids)
        for index, turn in self._turns(messages, tools):
            for piece, is_sampled in turn:
                ids += piece
                indices += [index] * len(piece)
                sampled += [is_sampled] * len(piece)
        tail = self._generation if add_generation_prompt else []
        return RenderedTokens(
            token_ids=ids + tail,
            message_indices=indices + [-1] * len(tail),
            sampled_mask=sampled + [False] * len(tail),
            message_roles=[str(message["role"]) for message in messages],
        )

    def render_ids(
        self, messages: list[Turn], *, tools: list[Turn] | None = None, add_generation_prompt: bool = False
    ) -> list[int]:
        self._check_tools(tools)
        ids = self._opening(messages)
        for _, turn in self._turns(messages, tools):
            for piece, _ in turn:
                ids += piece
        return ids + self._generation if add_generation_prompt else ids

    def bridge_to_next_turn(
        self,
        previous_prompt_ids: list[int],
        previous_completion_ids: list[int],
        new_messages: list[Turn],
        *,
        tools: list[Turn] | None = None,
    ) -> RenderedTokens | None:
        if not new_messages or any(message["role"] == "assistant" for message in new_messages):
            return None
        prior = [*previous_prompt_ids, *previous_completion_ids]
        if not previous_completion_ids or previous_completion_ids[-1] not in self._stops:
            prior += [*self._left_open(previous_completion_ids), self._end]
        self._check_tools(tools)
        added = self._render([], new_messages, tools, add_generation_prompt=True)
        lead = len(prior) + len(self._newline)
        return RenderedTokens(
            token_ids=[*prior, *self._newline, *added.token_ids],
            message_indices=[-1] * lead + list(added.message_indices),
            sampled_mask=[False] * (lead + len(added.token_ids)),
            message_roles=list(added.message_roles),
        )

    def parse_response(
        self, token_ids: list[int], *, tools: list[Turn] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        return ParsedResponse(content=self._decode(self._before_stop(token_ids)))

    def _left_open(self, completion: Sequence[int]) -> list[int]:
        """What closes what a reply that was cut has left open."""
        return []

    def _opening(self, messages: list[Turn]) -> list[int]:
        if not self._default_system or not messages or messages[0]["role"] == "system":
            return []
        return [self._start, *self._encode("system\n" + self._default_system), self._end, *self._newline]

    def _turns(self, messages: list[Turn], tools: list[Turn] | None) -> Iterator[tuple[int, list[Piece]]]:
        for index, message in enumerate(messages):
            yield index, self._turn(message, tools)

    def _turn(self, message: Turn, tools: list[Turn] | None) -> list[Piece]:
        role = message["role"]
        if role == "assistant":
            body: list[Piece] = [(piece, True) for piece in self._reply(message, tools)]
            return [(self._generation, False), *body, ([self._end], True), (self._newline, False)]
        text = self._encode(self._role(role) + "\n" + (message.get("content") or ""))
        return [([self._start, *text, self._end, *self._newline], False)]

    def _role(self, role: str) -> str:
        return "user" if role == "tool" else role

    def _reply(self, message: Turn, tools: list[Turn] | None) -> list[list[int]]:
        if message.get("tool_calls"):
            raise RenderError(f"the {self.NAME} format has no tool calls", fault="user")
        return [self._encode(message.get("content") or "")]

    def _check_tools(self, tools: list[Turn] | None) -> None:
        if tools and not self.has_tools:
            raise RenderError(
                f"the {self.NAME} format has no tools",
                hint="use a text-mode harness with this policy, or a policy whose format has tools",
                fault="user",
            )

    def _required(self, token: str) -> int:
        found = token_id(self._tokenizer, token)
        if found is None:
            raise RenderError(
                f"the tokenizer has no single token {token}",
                hint=f"this policy does not speak {self.NAME}; set policy.renderer",
                fault="user",
            )
        return found

    def _before_stop(self, ids: Sequence[int]) -> list[int]:
        end = next((at for at, token in enumerate(ids) if token in self._stops), len(ids))
        return list(ids[:end])

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False) if ids else ""


class TinyChatMLRenderer(ChatMLRenderer):
    """The demo policy's format: the tool schema is not rendered, a call is `<tool_call>NAME\\nTEXT</tool_call>`.

    TEXT is the tool's one string argument, verbatim (`calls.string_argument`). A tool without one is called by
    its name alone. Thinking opens the reply as `<think>TEXT</think>`. A tool's result is a `tool` turn.
    """

    has_tools = True
    NAME = "tiny-chatml"

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._call = self._required("<tool_call>")
        self._call_end = self._required("</tool_call>")
        self._think = self._required("<think>")
        self._think_end = self._required("</think>")

    def parse_response(
        self, token_ids: list[int], *, tools: list[Turn] | None = None, prompt_ids: list[int] | None = None
    ) -> ParsedResponse:
        ids = self._before_stop(token_ids)
        reasoning, ids, closed = self._split_thinking(ids)
        if not closed:
            return ParsedResponse(content="", reasoning_content=reasoning or None, reasoning_complete=False)
        if self._call not in ids:
            return ParsedResponse(content=self._decode(ids), reasoning_content=reasoning or None)
        first = ids.index(self._call)
        content, rest = self._decode(ids[:first]), ids[first:]
        calls: list[ParsedToolCall] = []
        while self._call in rest:
            rest = rest[rest.index(self._call) + 1 :]
            is_closed = self._call_end in rest
            end = rest.index(self._call_end) if is_closed else len(rest)
            calls.append(self._parse_call(self._decode(rest[:end]), is_closed, tools))
            rest = rest[end + 1 :]
        return ParsedResponse(content=content, reasoning_content=reasoning or None, tool_calls=calls)

    def _left_open(self, completion: Sequence[int]) -> list[int]:
        _, _, closed = self._split_thinking(list(completion))
        return [] if closed else [self._think_end]

    def _split_thinking(self, ids: list[int]) -> tuple[str, list[int], bool]:
        if self._think not in ids or self._decode(ids[: ids.index(self._think)]).strip():
            return "", ids, True
        ids = ids[ids.index(self._think) + 1 :]
        if self._think_end in ids:
            end, after = ids.index(self._think_end), ids.index(self._think_end) + 1
        elif self._call in ids:
            end = after = ids.index(self._call)
        else:
            end = after = len(ids)
        closed = after > end or end < len(ids)
        return self._decode([token for token in ids[:end] if token != self._think]), ids[after:], closed

    def _parse_call(self, raw: str, closed: bool, tools: list[Turn] | None) -> ParsedToolCall:
        name, newline, text = raw.partition("\n")
        if not closed:
            return ParsedToolCall(raw=raw, name=name or None, status=ToolCallParseStatus.UNCLOSED_BLOCK)
        if not name.strip():
            return ParsedToolCall(raw=raw, status=ToolCallParseStatus.MISSING_NAME)
        key = string_argument(_find_tool(tools, name))
        arguments = {key or "command": text} if newline and (key or text) else {}
        return ParsedToolCall(raw=raw, name=name, arguments=arguments)

    def _role(self, role: str) -> str:
        return role

    def _reply(self, message: Turn, tools: list[Turn] | None) -> list[list[int]]:
        pieces: list[list[int]] = []
        if message.get("reasoning_content"):
            pieces.append([self._think, *self._encode(message["reasoning_content"]), self._think_end])
        pieces.append(self._encode(message.get("content") or ""))
        for call in message.get("tool_calls") or []:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            pieces.append([self._call, *self._encode(_call_text(name, arguments, tools)), self._call_end])
        return pieces


def _call_text(name: str, arguments: Any, tools: list[Turn] | None) -> str:
    if isinstance(arguments, dict):
        if not arguments:
            return name
        key = string_argument(_find_tool(tools, name)) or "command"
        value = arguments.get(key) if len(arguments) == 1 else None
        return f"{name}\n{value if isinstance(value, str) else json.dumps(arguments, ensure_ascii=False)}"
    return f"{name}\n{arguments}"


def _find_tool(tools: list[Turn] | None, name: str) -> Tool | None:
    for tool in tools or []:
        function = tool.get("function", tool)
        if function["name"] == name:
            return Tool(name, function.get("description", ""), function.get("parameters") or {})
    return None
