"""From messages to ids, by model family, on the `renderers` package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lego.trajectory.arrays import IntArray
from lego.trajectory.messages import Message, Tool
from lego.trajectory.parse import Reply, StreamParser


class Rendering(Protocol):
    """How one model family writes a conversation as ids, and reads its replies."""

    name: str
    stop_ids: tuple[int, ...]

    def render(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """The whole conversation with the generation prompt. Raises RenderError."""
        ...

    def extend(
        self, prompt_ids: IntArray, completion_ids: IntArray, new_messages: Sequence[Message], tools: Sequence[Tool]
    ) -> list[int] | None:
        """Only the ids that come after prompt and completion: closures, new messages, generation prompt.
        None where it cannot be proven (the caller renders afresh)."""
        ...

    def encode_reply(self, before: Sequence[Message], reply: Message, tools: Sequence[Tool]) -> list[int]:
        """The ids the model would have sampled for this reply, the stop id included."""
        ...

    def parser(self, prompt_ids: Sequence[int] | IntArray, tools: Sequence[Tool]) -> StreamParser: ...

    def parse(self, completion_ids: Sequence[int], tools: Sequence[Tool]) -> Reply: ...

    def decode(self, ids: Sequence[int] | IntArray) -> str: ...


def open_rendering(tokenizer: Any, name: str, model_name: str = "") -> Rendering:
    """name: qwen3 and the other names of `renderers` | chatml | tiny-chatml | auto."""
    raise NotImplementedError
