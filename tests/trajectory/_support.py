"""A small byte-level tokenizer with the Qwen3 marks, and conversations drawn at random."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from lego.trainer.tiny import SPECIAL_TOKENS
from lego.trajectory.messages import Message, Role, Tool, ToolCall
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import FolderTokenizer, load_tokenizer

CORPUS = [
    "user\nassistant\nsystem\ntool\nThe function in window.py is wrong. Fix it.\n\n",
    'bash\ncat window.py\n{"name": "bash", "arguments": {"command": "ls -la"}}\n',
    "def total(items, n):\n    s = 0\n    while i <= n:\n        s += items[i]\n    return s\n",
    "sed -i 's/<=/</' src/window.py && git diff | head -20 \u2026 \u00e9\u00fc\u4f60\u597d \U0001f600\n",
]

TOOLS = (
    Tool(
        "bash",
        "Run a command.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    ),
    Tool(
        "edit",
        "Edit.",
        {
            "type": "object",
            "properties": {"count": {"type": "integer"}, "path": {"type": "string"}},
            "required": ["path"],
        },
    ),
    Tool("submit", "Finish.", {"type": "object", "properties": {}}),
)


FOLDERS = TemporaryDirectory(prefix="lego-tests-")
"""What is made once a session and used by many tests; gone with the process."""


def new_folder() -> Path:
    folder = Path(FOLDERS.name) / str(len(list(Path(FOLDERS.name).iterdir())))
    folder.mkdir()
    return folder


@cache
def tokenizer() -> FolderTokenizer:
    folder = new_folder()
    bpe = Tokenizer(BPE())
    pieces = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+\r?\n*|\s*\n+|\s+")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pieces, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(mark, special=mark.startswith("<|"), normalized=False) for mark in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(CORPUS * 5, trainer)
    bpe.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    loaded = load_tokenizer(folder)
    assert isinstance(loaded, FolderTokenizer)
    return loaded


@cache
def rendering(name: str) -> Rendering:
    return open_rendering(tokenizer(), name)


FAMILIES = ("qwen3", "tiny-chatml", "chatml")


def mark(text: str) -> int:
    return int(tokenizer().convert_tokens_to_ids(text))


PLAIN = st.text(alphabet="ab Z\n\t{}\"'\\:,<>/=_.0\u00e9\u4f60\U0001f600", max_size=24)
"""Text with quotes, braces, blanks and characters of several bytes; never a whole mark."""

WORDS = PLAIN.map(lambda text: "w" + text + "x")


@st.composite
def calls(draw: st.DrawFn, plain: bool) -> ToolCall:
    """A call that the family can say: one string argument for the plain format, any JSON object for the other."""
    if plain:
        name, arguments = draw(
            st.sampled_from(
                [
                    ("bash", {"command": draw(PLAIN)}),
                    ("edit", {"path": draw(PLAIN)}),
                    ("submit", {}),
                ]
            )
        )
        return ToolCall("", name, json.dumps(arguments))
    simple = st.none() | st.booleans() | st.integers() | PLAIN
    values = st.recursive(simple, lambda value: st.lists(value, max_size=3), max_leaves=4)
    given: dict[str, Any] = draw(st.dictionaries(PLAIN, values, max_size=3))  # type: ignore[arg-type]
    return ToolCall("", draw(st.sampled_from(["bash", "edit", "nosuch"])), json.dumps(given))


@st.composite
def replies(draw: st.DrawFn, family: str) -> Message:
    """A reply that the family can say."""
    content = draw(WORDS | st.just(""))
    if family == "chatml":
        return Message("assistant", content)
    reasoning = draw(st.none() | WORDS)
    said = tuple(draw(st.lists(calls(plain=family == "tiny-chatml"), max_size=3)))
    return Message("assistant", content, reasoning, said)


@st.composite
def inputs(draw: st.DrawFn, first: bool = False) -> list[Message]:
    """What a harness adds before the next call: a first prompt, or results and remarks."""
    if first:
        system = [Message("system", draw(WORDS))] if draw(st.booleans()) else []
        return [*system, Message("user", draw(WORDS))]
    roles: list[Role] = ["user", "tool", "tool"]
    kind = st.sampled_from(roles)
    return [Message(draw(kind), draw(PLAIN)) for _ in range(draw(st.integers(1, 3)))]
