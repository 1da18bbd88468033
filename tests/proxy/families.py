"""A family that thinks, on a stand-in vocabulary: what a policy of it would sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lego.proxy.records import FinishedCall
from lego.proxy.session import Session
from lego.trajectory.messages import Message
from lego.trajectory.render import Rendering
from lego.trajectory.segments import segments
from tests.proxy.parts import PlayEngine, Turn
from tests.trajectory._support import TOOLS, mark, rendering, tokenizer

QWEN3 = "qwen3"
END = "<|im_end|>"


def family() -> Rendering:
    return rendering(QWEN3)


def said(content: str, thinking: str | None = None) -> Turn:
    """The turn of a policy that says exactly this."""
    reply = Message("assistant", content, thinking)
    return Turn("", pieces=9, raw=family().encode_reply([Message("user", "go")], reply, TOOLS))


def sampled(*pieces: str) -> Turn:
    """A turn of these pieces; a piece that is a mark of the vocabulary is its one id."""
    ids: list[int] = []
    for piece in pieces:
        ids += [mark(piece)] if piece.startswith("<") else tokenizer().encode(piece)
    return Turn("", pieces=9, raw=ids)


LOOK = sampled(
    "<think>", "\nWhere is it?\n", "</think>", "\n\nI look.\n",
    "<tool_call>", '\n{"name": "bash", "arguments": {"command":  "ls\\u00e9", "n": 1}}\n', "</tool_call>", "\n",
    "<tool_call>", '\n{"name": "edit", "arguments": {"path": "a"}}\n', "</tool_call>", END,
)  # fmt: skip
"""Thinking, text and two calls, the first written as no serialiser would write it again."""

DONE = said("Done.", "That was all.")


def raw(turn: Turn) -> list[int]:
    return list(turn.raw or ())


def continued(engine: PlayEngine, rows: Sequence[FinishedCall], number: int) -> bool:
    """Whether request `number` (from 1) has every id of the prompt and completion of the one before it."""
    before = np.concatenate([engine.requests[number - 2].prompt_ids, rows[number - 2].completion_ids])
    return engine.requests[number - 1].prompt_ids[: len(before)].tolist() == before.tolist()


def all_trained(session: Session, rows: Sequence[FinishedCall]) -> bool:
    """Whether every sampled id is in exactly one segment's loss."""
    parts = segments(session.tree)
    whole = sum(len(row.completion_ids) for row in rows)
    return not parts.dropped and not parts.excluded and sum(s.sampled for s in parts.segments) == whole


def last(rows: Sequence[FinishedCall]) -> dict[str, Any]:
    return rows[-1].reply or {}
