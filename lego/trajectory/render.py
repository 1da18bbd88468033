"""From messages to ids, by model family, on the `renderers` package.

A continued call keeps the raw ids of its parent; only what comes after them is rendered here, and the prefix is
asserted, never assumed. Where a family cannot prove the continuation it says None, and the caller renders afresh.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lego.errors import RenderError
from lego.trajectory.arrays import IntArray, as_ids
from lego.trajectory.calls import HermesReader, PlainReader
from lego.trajectory.messages import Message, Tool, ToolCall
from lego.trajectory.parse import Grammar, Reply, StreamParser, TaggedParser, WholeParser
from lego.trajectory.tokenizer import Tokenizer, load_template_tokenizer, token_id

Turn = dict[str, Any]

_PROMPT_TAIL = 64
"""Ids of a prompt that can hold its generation prefix."""


class Rendering:
    """How one model family writes a conversation as ids, and reads its replies. Made by `open_rendering`.

    `stop_ids` end a reply; the one that was sampled is part of it. `grammar`: the marks for streaming, or None where
    replies are parsed as a whole. A family with a grammar is also known to write each turn independently of others
    (tested), so that continuing it costs only its new messages.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, renderer: Any, grammar: Grammar | None) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.grammar = grammar
        self.stop_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        self._generation = self._generation_ids()

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole conversation and the generation prompt. Raises RenderError where it cannot be expressed."""
        return self._call(self.renderer.render_ids, messages, tools, add_generation_prompt=True)

    def render_spliced(
        self, messages: Sequence[Message], tools: Sequence[Tool], raw: Mapping[int, IntArray]
    ) -> tuple[list[int], int]:
        """Like `render`, with the raw completion ids `raw[i]` in the place of assistant message i where it can be
        proven that they stand there: the family says which ids it would have sampled for that message, they follow
        the very generation prompt, and the raw ids end in their only stop id. Also says how many were put in."""
        whole = {i: ids for i, ids in raw.items() if self._is_whole(ids)}
        if not whole or not self._generation:
            return self.render(messages, tools), 0
        rendered = self._call(self.renderer.render, messages, tools, add_generation_prompt=True)
        ids, owners, sampled = list(rendered.token_ids), rendered.message_indices, rendered.sampled_mask
        if not len(ids) == len(owners) == len(sampled):
            return ids, 0
        spans: dict[int, tuple[int, int]] = {}
        for at, (owner, is_sampled) in enumerate(zip(owners, sampled, strict=True)):
            if is_sampled and owner in whole:
                spans[owner] = (spans.get(owner, (at, at))[0], at + 1)
        count = 0
        for owner, (begin, end) in sorted(spans.items(), reverse=True):
            lead = ids[max(0, begin - len(self._generation)) : begin]
            if lead == self._generation and all(sampled[begin:end]):
                ids[begin:end] = whole[owner].tolist()
                count += 1
        return ids, count

    def extend(
        self, prompt_ids: IntArray, completion_ids: IntArray, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """Only the ids that come after prompt + completion: what closes a reply that was cut, the new messages, the
        generation prompt. None where this cannot be proven to keep every id before it; then render afresh."""
        if not new_messages or any(message.role == "assistant" for message in new_messages):
            return None
        completion = completion_ids.tolist()
        if any(token in self.stop_ids for token in completion[:-1]):
            return None
        if self.grammar is not None:
            closed = bool(completion) and completion[-1] in self.stop_ids
            added = self._bridge(self._generation, [self.stop_ids[0]], new_messages, tools)
            closure = [] if closed else [*self._close_thinking(completion), self.stop_ids[0]]
            return None if added is None else closure + added
        return self._bridge(prompt_ids.tolist(), completion, new_messages, tools)

    def encode_reply(self, before: Sequence[Message], reply: Message, tools: Sequence[Tool]) -> list[int]:
        """The ids the model would have sampled for `reply` after the messages `before`, the stop id included.

        Raises RenderError where the family cannot say exactly this reply (it is read back and compared).
        """
        messages = [*before, reply]
        rendered = self._call(self.renderer.render, messages, tools, add_generation_prompt=False)
        marks = zip(rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=False)
        ids = [token for token, owner, sampled in marks if sampled and owner == len(before)]
        if not ids:
            prompt = self.render(before, tools)
            ids = list(rendered.token_ids[len(prompt) :])
            stops = [at for at, token in enumerate(ids) if token in self.stop_ids]
            if list(rendered.token_ids[: len(prompt)]) != prompt or not stops:
                raise RenderError(f"the {self.name} template does not show which ids of a reply are the model's own")
            ids = ids[: stops[-1] + 1]
        said = self.parse(ids, tools)
        if said.malformed or _comparable(said.message) != _comparable(reply):
            raise RenderError(
                f"{self.name} cannot say this reply exactly: it reads back as {said.message!r}",
                hint=f"the reply is {reply!r}",
            )
        return ids

    def parser(self, prompt_ids: Sequence[int] | IntArray, tools: Sequence[Tool]) -> StreamParser:
        """A parser for one reply to this prompt."""
        if self.grammar is None:
            return WholeParser(self.renderer, _tool_dicts(tools), [int(token) for token in prompt_ids])
        tail = as_ids(prompt_ids[-_PROMPT_TAIL:]).tolist()
        return TaggedParser(self.tokenizer, self.grammar, tools, thinking=self._opens_thinking(tail))

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Tool], prompt_ids: Sequence[int] = ()) -> Reply:
        """A whole reply at once; the same as the parser's sum."""
        parser = self.parser(prompt_ids, tools)
        parser.feed([int(token) for token in completion_ids])
        return parser.finish("stop")

    def decode(self, ids: Sequence[int] | IntArray) -> str:
        """The text of ids, marks included."""
        return self.tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)

    def _is_whole(self, ids: IntArray) -> bool:
        stops = [at for at, token in enumerate(ids.tolist()) if token in self.stop_ids]
        return stops == [len(ids) - 1]

    def _opens_thinking(self, prompt_tail: Sequence[int]) -> bool:
        think, think_end = (self.grammar.think, self.grammar.think_end) if self.grammar else (None, None)
        for token in reversed(prompt_tail):
            if token in self.stop_ids or token == think_end:
                return False
            if token == think:
                return True
        return False

    def _close_thinking(self, completion: Sequence[int]) -> list[int]:
        """What ends thinking that was cut open."""
        grammar = self.grammar
        if grammar is None or grammar.think is None or grammar.think_end is None:
            return []
        marks = (grammar.think, grammar.think_end, grammar.call)
        opening = next((at for at, token in enumerate(completion) if token in marks), None)
        if opening is None or completion[opening] != grammar.think:
            return []
        if self.decode(completion[:opening]).strip():
            return []
        ended = any(token in (grammar.think_end, grammar.call) for token in completion[opening + 1 :])
        return [] if ended else [grammar.think_end]

    def _bridge(
        self, prompt: list[int], completion: list[int], new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        try:
            bridged = self.renderer.bridge_to_next_turn(
                prompt, completion, [_turn(message) for message in new_messages], tools=_tool_dicts(tools)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
        if bridged is None:
            return None
        before, ids = prompt + completion, list(bridged.token_ids)
        return ids[len(before) :] if ids[: len(before)] == before else None

    def _generation_ids(self) -> list[int]:
        messages = [Message("user", "x")]
        without = self._call(self.renderer.render_ids, messages, (), add_generation_prompt=False)
        with_it = self._call(self.renderer.render_ids, messages, (), add_generation_prompt=True)
        return with_it[len(without) :] if with_it[: len(without)] == without else []

    def _call(self, render: Any, messages: Sequence[Message], tools: Sequence[Tool], **options: bool) -> Any:
        try:
            return render([_turn(message) for message in messages], tools=_tool_dicts(tools), **options)
        except (ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
            raise RenderError(f"the {self.name} template cannot express this conversation: {error}") from error


def open_rendering(tokenizer: Tokenizer, name: str, model_name: str = "") -> Rendering:
    """The rendering of a model family.

    name: `tiny-chatml` (the demo policy), `chatml` (plain, no tools), a name the `renderers` package knows (`qwen3`,
    `llama-3`, …), or `auto`: what `renderers` maps `model_name` (or the tokenizer's own name) to, else the family
    whose ids are those of the tokenizer's chat template on a few probes, else that template itself, which cannot
    prove continuations, so that every call is rendered afresh.
    Raises RenderError (a user fault) for a name nobody knows or a tokenizer without the family's marks.
    """
    if name in ("chatml", "tiny-chatml"):
        from lego.trajectory.chatml import ChatMLRenderer, TinyChatMLRenderer

        own = (
            ChatMLRenderer(tokenizer, _default_system(tokenizer)) if name == "chatml" else TinyChatMLRenderer(tokenizer)
        )
        return Rendering(name, tokenizer, own, _grammar(name, tokenizer, own))
    from renderers import base, configs

    if name == "auto":
        name = base.MODEL_RENDERER_MAP.get(model_name or tokenizer.name_or_path, "")
        if not name:
            templated = _templated(tokenizer)
            name = next((known for known in ("qwen3", "chatml") if _speaks(templated, known)), "default")
            return open_rendering(templated if name == "default" else tokenizer, name)
    if name == "default":
        tokenizer = _templated(tokenizer)
        if not getattr(tokenizer, "chat_template", True):
            raise RenderError(
                f"the tokenizer of {tokenizer.name_or_path} is of no known family and has no chat template",
                hint="name its family as policy.renderer (qwen3, chatml, …), or put its chat_template.jinja beside it",
                fault="user",
            )
    try:
        config: Any = configs.config_from_name(name)
        renderer = base.create_renderer(tokenizer, _keep_thinking(config))
    except (ValueError, KeyError, AssertionError, NotImplementedError) as error:
        raise RenderError(
            f"no renderer {name!r} for the tokenizer of {tokenizer.name_or_path}: {error}",
            hint="set policy.renderer to auto, chatml, tiny-chatml or a name the renderers package knows",
            fault="user",
        ) from error
    return Rendering(name, tokenizer, renderer, _grammar(name, tokenizer, renderer))


def _templated(tokenizer: Tokenizer) -> Tokenizer:
    has_template = hasattr(tokenizer, "apply_chat_template")
    return tokenizer if has_template else load_template_tokenizer(tokenizer.name_or_path)


def _default_system(tokenizer: Tokenizer) -> str:
    """The system turn that the tokenizer's own ChatML template gives a conversation without one; empty for none."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return ""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # As transformers reads templates, which takes seconds to import.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        text = environment.from_string(template).render(messages=[{"role": "user", "content": "q"}])
    except (TemplateError, ValueError, TypeError, ArithmeticError, LookupError):
        return ""
    mark, (opening, user, _) = "<|im_start|>system\n", text.partition("<|im_end|>\n<|im_start|>user\nq")
    return opening.removeprefix(mark) if user and opening.startswith(mark) else ""


def _speaks(templated: Any, name: str) -> bool:
    """Whether a family's ids are those of the tokenizer's own chat template."""
    user, tool = Message("user", "q"), Tool("t", "d", {"type": "object", "properties": {"a": {"type": "string"}}})
    call = Message("assistant", "c", None, (ToolCall("i", "t", '{"a": "b"}'),))
    asked = [Message("system", "s"), user]
    probes: list[tuple[list[Message], list[Tool]]] = [([user], []), ([*asked, Message("assistant", "c"), user], [])]
    if name != "chatml":
        probes += [(asked, [tool]), ([*asked, call, Message("tool", "r")], [tool])]
    try:
        family, template = open_rendering(templated, name), open_rendering(templated, "default")
        return all(family.render(messages, tools) == template.render(messages, tools) for messages, tools in probes)
    except (RenderError, ArithmeticError, LookupError):
        return False


def _keep_thinking(config: Any) -> Any:
    """The config with bridges that keep sampled thinking, where the family can."""
    try:
        return config if config.name == "default" else type(config)(thinking_retention="all")
    except ValueError:
        return config


def _grammar(name: str, tokenizer: Tokenizer, renderer: Any) -> Grammar | None:
    stops = frozenset(renderer.get_stop_token_ids())
    if name == "chatml":
        return Grammar(stops)
    if name not in ("qwen3", "tiny-chatml"):
        return None
    plain = name == "tiny-chatml"
    return Grammar(
        stops,
        think=token_id(tokenizer, "<think>"),
        think_end=token_id(tokenizer, "</think>"),
        call=token_id(tokenizer, "<tool_call>"),
        call_end=token_id(tokenizer, "</tool_call>"),
        strip=not plain,
        reader=PlainReader if plain else HermesReader,
    )


def _turn(message: Message) -> Turn:
    """A message as `renderers` takes it. Arguments that are a JSON object go in as one, as a stock server does."""
    turn: Turn = {"role": message.role, "content": message.content}
    if message.reasoning:
        turn["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments(c.arguments)}}
            for c in message.tool_calls
        ]
    return turn


def _arguments(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _tool_dicts(tools: Sequence[Tool]) -> list[Turn] | None:
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ] or None


def _comparable(message: Message) -> tuple[Any, ...]:
    calls = [(call.name, _arguments(call.arguments)) for call in message.tool_calls]
    return message.content.strip(), (message.reasoning or "").strip(), calls
