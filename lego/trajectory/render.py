"""From messages to ids, by model family.

A continued call keeps the raw ids of its parent; only what comes after them is rendered here, and the prefix is
asserted, never assumed. Where a family cannot prove the continuation it says None, and the caller renders afresh.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from lego.errors import RenderError
from lego.trajectory.arrays import IntArray, as_ids
from lego.trajectory.families import FAMILIES, Family, open_renderer, with_template
from lego.trajectory.messages import Message, Tool
from lego.trajectory.parse import Reply, StreamParser
from lego.trajectory.recognise import family_of
from lego.trajectory.tokenizer import Tokenizer, token_id
from lego.trajectory.turns import comparable, tool_dicts, turn_of, with_tool_names
from lego.trajectory.vllm_reader import PREFIX
from lego.trajectory.whole import WholeParser

_PROMPT_TAIL = 64
"""Ids of a prompt that can hold its generation prompt."""

_REFUSALS = (ValueError, KeyError, TypeError, AttributeError, AssertionError, TemplateError)
"""What renderers raise for conversations that their format cannot express."""


class Rendering:
    """How one model family writes a conversation as ids, and reads its replies. Made by `open_rendering`.

    `stop_ids` end a reply; the one that was sampled is part of it. `family`: what is proven of it, or None for a
    renderer of which nothing is: its replies are parsed as a whole and its bridge sees the whole history. Of a family
    it is proven that it writes each turn independently of others, so that continuing costs only the new messages.
    """

    def __init__(self, name: str, tokenizer: Tokenizer, renderer: Any, family: Family | None) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.renderer = renderer
        self.family = family
        self.stop_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        self._stops = frozenset(self.stop_ids)
        ask, result = [Message("user", "x")], Message("tool", "x", name="x")
        self._generation = self._generation_ids(ask) if family else []
        self._generation_after_tool = self._generation_ids([*ask, Message("assistant", "x"), result]) if family else []
        # A turn that is over, after which new messages look as they do after any other.
        self._over = next((over for over in self._endings() if self._bridge(self._generation, over, ask, ())), None)

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole conversation and the generation prompt. Raises RenderError where it cannot be expressed."""
        return self._call(self.renderer.render_ids, messages, tools, add_generation_prompt=True)

    def render_spliced(
        self, messages: Sequence[Message], tools: Sequence[Tool], raw: Mapping[int, IntArray]
    ) -> tuple[list[int], int]:
        """Like `render`, with the raw completion ids `raw[i]` in the place of assistant message i, after the very
        generation prompt that they were sampled after, where the family says which ids are that message's and the
        raw ids end in their only stop id. Also says how many were put in."""
        whole = {i: ids for i, ids in raw.items() if self._is_whole(ids)}
        if not whole or self.family is None:
            return self.render(messages, tools), 0
        rendered = self._call(self.renderer.render, messages, tools, add_generation_prompt=True)
        ids = list(rendered.token_ids)
        count = 0
        for owner, begin, end in reversed(list(self._turns(rendered))):
            if owner not in whole:
                continue
            after_tool = owner > 0 and messages[owner - 1].role == "tool"
            lead = self._generation_after_tool if after_tool else self._generation
            ids[begin:end] = [*lead, *whole[owner].tolist()]
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
        if any(token in self._stops for token in completion[:-1]):
            return None
        if self.family is None:
            return self._bridge(prompt_ids.tolist(), completion, new_messages, tools)
        if completion and completion[-1] in self._stops and self._over is not None:
            return self._bridge(self._generation, self._over, new_messages, tools)
        return self._bridge(prompt_ids[-_PROMPT_TAIL:].tolist(), completion, new_messages, tools)

    def encode_reply(self, before: Sequence[Message], reply: Message, tools: Sequence[Tool]) -> list[int]:
        """The ids the model would have sampled for `reply` after the messages `before`, the stop id included.

        Raises RenderError where the family cannot say exactly this reply (it is read back and compared).
        """
        prompt = self.render(before, tools)
        said: Reply | None = None
        for ids in self._candidates(before, prompt, reply, tools):
            said = self.parse(ids, tools, prompt)
            if not said.malformed and comparable(said.message) == comparable(reply):
                return ids
        raise RenderError(
            f"{self.name} cannot say this reply exactly: it reads back as {said.message if said else 'nothing'!r}",
            hint=f"the reply is {reply!r}",
        )

    def parser(self, prompt_ids: Sequence[int] | IntArray, tools: Sequence[Tool]) -> StreamParser:
        """A parser for one reply to this prompt."""
        if self.family is None:
            return WholeParser(self.tokenizer, self.renderer, tool_dicts(tools), [int(token) for token in prompt_ids])
        tail = as_ids(prompt_ids[-_PROMPT_TAIL:]).tolist()
        return self.family.parser(self.tokenizer, self._stops, tools, tail)

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Tool], prompt_ids: Sequence[int] = ()) -> Reply:
        """A whole reply at once; the same as the parser's sum."""
        parser = self.parser(prompt_ids, tools)
        parser.feed([int(token) for token in completion_ids])
        return parser.finish("stop")

    def decode(self, ids: Sequence[int] | IntArray) -> str:
        """The text of ids, marks included."""
        return self.tokenizer.decode([int(token) for token in ids], skip_special_tokens=False)

    def named(self, messages: Sequence[Message]) -> Sequence[Message]:
        """The messages with their tool results named, where the family writes such names."""
        return with_tool_names(messages) if self.family and self.family.names_results else messages

    def _endings(self) -> Iterator[list[int]]:
        """Replies of no text, as they end: what the generation prompt opened may have to be closed first."""
        closes = token_id(self.tokenizer, "</think>")
        for stop in self.stop_ids:
            yield [stop]
            if closes is not None:
                yield [closes, stop]

    def _is_whole(self, ids: IntArray) -> bool:
        stops = [at for at, token in enumerate(ids.tolist()) if token in self._stops]
        return stops == [len(ids) - 1]

    def _turns(self, rendered: Any) -> Iterator[tuple[int, int, int]]:
        """(message, begin, end): where the ids of each message lie, from its opening to the end of what was sampled."""
        ids, owners, sampled = rendered.token_ids, rendered.message_indices, rendered.sampled_mask
        spans: dict[int, tuple[int, int]] = {}
        for at, owner in enumerate(owners):
            begin, end = spans.get(owner, (at, 0))
            # A renderer that cannot say what was sampled still ends it with a stop id.
            spans[owner] = (begin, at + 1 if (sampled[at] if sampled else ids[at] in self._stops) else end)
        for owner, (begin, end) in sorted(spans.items()):
            if owner >= 0 and end:
                yield owner, begin, end

    def _candidates(
        self, before: Sequence[Message], prompt: list[int], reply: Message, tools: Sequence[Tool]
    ) -> Iterator[list[int]]:
        """What might have been sampled after `prompt` for `reply`."""
        history = self._call(self.renderer.render_ids, before, tools, add_generation_prompt=False)
        whole = self._call(self.renderer.render_ids, [*before, reply], tools, add_generation_prompt=False)
        if whole[: len(prompt)] == prompt:
            yield self._to_last_stop(whole[len(prompt) :])
        # Some ids of a template span the seam between the prompt and the reply; the reply alone has others.
        asked, text = self.decode(prompt), self.decode(whole)
        if text.startswith(asked):
            yield self._to_last_stop(self._encode(text[len(asked) :]))
        if self.family is not None and self.family.thinking_end and whole[: len(history)] == history:
            thought = self._encode((reply.reasoning or "") + self.family.thinking_end)
            yield self._to_last_stop([*thought, *whole[len(history) :]])

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _to_last_stop(self, ids: Sequence[int]) -> list[int]:
        end = next((at for at in range(len(ids) - 1, -1, -1) if ids[at] in self._stops), -1)
        return list(ids[: end + 1])

    def _bridge(
        self, prompt: list[int], completion: list[int], new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        try:
            bridged = self.renderer.bridge_to_next_turn(
                prompt, completion, [turn_of(message) for message in new_messages], tools=tool_dicts(tools)
            )
        except (*_REFUSALS, RenderError):
            return None
        if bridged is None:
            return None
        before, ids = prompt + completion, list(bridged.token_ids)
        return ids[len(before) :] if ids[: len(before)] == before else None

    def _generation_ids(self, messages: Sequence[Message]) -> list[int]:
        try:
            without = self._call(self.renderer.render_ids, messages, (), add_generation_prompt=False)
            with_it = self._call(self.renderer.render_ids, messages, (), add_generation_prompt=True)
        except RenderError:
            return []
        return with_it[len(without) :] if with_it[: len(without)] == without else []

    def _call(self, render: Any, messages: Sequence[Message], tools: Sequence[Tool], **options: bool) -> Any:
        try:
            return render([turn_of(message) for message in self.named(messages)], tools=tool_dicts(tools), **options)
        except _REFUSALS as error:
            raise RenderError(f"the {self.name} template cannot express this conversation: {error}") from error


def open_rendering(tokenizer: Tokenizer, name: str, model_name: str = "") -> Rendering:
    """The rendering of a model family.

    name: one of `FAMILIES`, another name that the `renderers` package knows, `default` (the tokenizer's own template,
    which cannot prove continuations, so that every call is rendered afresh), `vllm:TOOLS+THINKING` (the same, its
    replies read by vLLM's parsers of these names), or `auto`: what `recognise.family_of` says of `model_name` (or the
    tokenizer's own name) and of the tokenizer.
    Raises RenderError (a user fault) for a name nobody knows or a tokenizer without the family's marks.
    """
    if name == "auto":
        name = family_of(tokenizer, model_name)
    if name == "default" or name.startswith(PREFIX):
        tokenizer = with_template(tokenizer)
    return Rendering(name, tokenizer, open_renderer(tokenizer, name), FAMILIES.get(name))
