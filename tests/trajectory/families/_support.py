"""Each family on its own vocabulary, and conversations drawn at random that it can say.

LEGO_EXAMPLES multiplies the conversations: 1 in the default suite, 25 for some thousands of each family.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lego.trajectory.messages import Message, Role, Tool, ToolCall
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import Tokenizer, load_tokenizer, token_id
from tests.conftest import missing
from tests.trajectory import _support

FOLDER = Path(__file__).resolve().parents[3] / ".tokenizers"
STAND_IN = "stand-in"
TOOLS = _support.TOOLS


@dataclass(frozen=True)
class Case:
    """family: our name. vocabulary: a folder of .tokenizers, or the stand-in. drops: earlier thinking is left out of
    what its template renders, but within a tool cycle. calls: how many one reply may hold. role_marks: ids that only
    a template writes; the family's own parser takes them for the opening of the turn.
    """

    family: str
    vocabulary: str
    thinks: bool = False
    drops: bool = False
    calls: int = 0
    xml: bool = False
    alternates: bool = False
    role_marks: tuple[str, ...] = ("<|im_start|>",)

    @property
    def id(self) -> str:
        return f"{self.family}-{self.vocabulary}"


CASES = (
    Case("qwen3", "qwen3", thinks=True, drops=True, calls=3),
    Case("qwen3", STAND_IN, thinks=True, drops=True, calls=3),
    Case("qwen3-coder", "qwen3", calls=3, xml=True),
    Case("qwen3-coder", STAND_IN, calls=3, xml=True),
    Case("qwen3.5", "qwen3.6", thinks=True, drops=True, calls=3, xml=True),
    Case("qwen3.6", "qwen3.6", thinks=True, drops=True, calls=3, xml=True),
    Case("llama-3", "llama-3", calls=1, role_marks=("<|start_header_id|>", "<|end_header_id|>")),
    Case("gemma-3", "gemma-3", alternates=True, role_marks=()),
    Case("gpt-oss", "gpt-oss", thinks=True, drops=True, calls=1, role_marks=()),
    Case("deepseek-v3", "deepseek-v3", calls=3, role_marks=("<｜Assistant｜>",)),
    Case("chatml", "qwen3"),
    Case("chatml", "smollm2"),
    Case("chatml", STAND_IN),
    Case("tiny-chatml", STAND_IN, thinks=True, calls=3),
)


def examples(number: int) -> settings:
    """Hypothesis settings: `number` examples, times LEGO_EXAMPLES."""
    scale = float(os.environ.get("LEGO_EXAMPLES", "1"))
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    return settings(max_examples=max(1, int(number * scale)), deadline=None, suppress_health_check=slow)


@cache
def tokenizer(vocabulary: str) -> Tokenizer:
    if vocabulary == STAND_IN:
        return _support.tokenizer()
    folder = FOLDER / vocabulary
    if vocabulary == "smollm2":
        folder = FOLDER.parent / "models" / vocabulary
        if not folder.is_dir():
            missing("smollm", f"{folder} is not there; make smollm makes it")
    if not (folder / "tokenizer.json").is_file():
        missing("tokenizers", f"no {vocabulary} in {FOLDER.name}/; python tools/vocabularies.py fetches them")
    return load_tokenizer(folder)


@cache
def rendering(case: Case) -> Rendering:
    if case.family == "gpt-oss":
        os.environ.setdefault("TIKTOKEN_ENCODINGS_BASE", str(FOLDER / "gpt-oss"))
    return open_rendering(tokenizer(case.vocabulary), case.family)


def tools_of(case: Case) -> tuple[Tool, ...]:
    return TOOLS if case.calls else ()


def ids_of(case: Case, text: str) -> list[int]:
    """The ids of a text, marks as they are written."""
    return list(tokenizer(case.vocabulary).encode(text, add_special_tokens=False))


def any_id(case: Case) -> st.SearchStrategy[int]:
    """An id of the vocabulary that ends no reply."""
    r = rendering(case)
    banned = {*r.stop_ids, *(token_id(r.tokenizer, mark) for mark in case.role_marks)}
    size: int = len(r.tokenizer)  # type: ignore[arg-type]
    special = [i for i in range(max(0, size - 300), size) if i not in banned]
    return st.sampled_from(special) | st.integers(0, size - 1).filter(lambda i: i not in banned)


PLAIN = st.text(alphabet="ab Z\n\t{}\"'\\:,<>/=_.0\u00e9\u4f60\U0001f600", max_size=24)
"""Text with quotes, braces, blanks and characters of several bytes; never a whole mark."""

WORDS = PLAIN.map(lambda text: "w" + text + "x")


@st.composite
def calls(draw: st.DrawFn, case: Case) -> ToolCall:
    """A call that the family can say exactly."""
    if case.family == "tiny-chatml":
        return draw(_support.calls(plain=True))
    if case.xml:
        given: dict[str, object] = {"path": draw(WORDS)}
        if draw(st.booleans()):
            given["count"] = draw(st.integers(-99, 10**9))
        name, given = draw(st.sampled_from([("bash", {"command": draw(WORDS)}), ("edit", given), ("submit", {})]))
        return ToolCall("", name, json.dumps(given))
    return draw(_support.calls(plain=False))


@st.composite
def replies(draw: st.DrawFn, case: Case, *, in_cycle: bool = False) -> Message:
    """A reply that the family can say. in_cycle: one of which its template keeps the thinking."""
    reasoning = draw(WORDS if in_cycle else st.none() | WORDS) if case.thinks else None
    least = 1 if in_cycle and case.family == "gpt-oss" else 0
    said = tuple(draw(st.lists(calls(case), min_size=least, max_size=case.calls))) if case.calls else ()
    if said and case.family in ("gpt-oss", "llama-3"):
        return Message("assistant", "", reasoning, said)
    return Message("assistant", draw(WORDS if case.family == "gpt-oss" else WORDS | st.just("")), reasoning, said)


@st.composite
def inputs(
    draw: st.DrawFn, case: Case, *, first: bool = False, roles: tuple[Role, ...] = ("user", "tool")
) -> list[Message]:
    """What a harness adds before the next call: a first prompt, or results and remarks."""
    if first:
        system = [Message("system", draw(WORDS))] if draw(st.booleans()) else []
        return [*system, Message("user", draw(WORDS))]
    number = 1 if case.alternates else draw(st.integers(1, 3))
    return [Message(draw(st.sampled_from(roles)), draw(PLAIN), name="bash") for _ in range(number)]
