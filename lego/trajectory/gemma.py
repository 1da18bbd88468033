"""The format of Gemma 3, which the `renderers` package lacks."""

from __future__ import annotations

from collections.abc import Iterator

from lego.trajectory.chatml import ChatMLRenderer, Piece, Turn
from lego.trajectory.tokenizer import Tokenizer


class GemmaRenderer(ChatMLRenderer):
    """`<start_of_turn>ROLE\\nCONTENT<end_of_turn>\\n` after `<bos>`; no tools, no thinking.

    As in the family's own template: the system text opens the first user turn, white space around a turn's text is
    dropped, and turns of user and model alternate (ValueError where they do not). Tool results are user turns.
    """

    NAME, START, END, ASSISTANT, END_OF_TEXT = "gemma-3", "<start_of_turn>", "<end_of_turn>", "model", "<eos>"

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        self._bos = self._required("<bos>")

    def _opening(self, messages: list[Turn]) -> list[int]:
        return [self._bos]

    def _turns(self, messages: list[Turn], tools: list[Turn] | None) -> Iterator[tuple[int, list[Piece]]]:
        opening, before = "", "assistant"
        for index, message in enumerate(messages):
            role, text = self._role(message["role"]), message.get("content") or ""
            if role == "system":
                if index:
                    raise ValueError("a system message that is not the first")
                opening = text + "\n\n"
                continue
            if (role == "assistant") == (before == "assistant"):
                raise ValueError("two turns of the same side in a row")
            yield index, self._turn({**message, "content": opening + text.strip()}, tools)
            opening, before = "", role
