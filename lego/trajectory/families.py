"""The model families: how each writes a conversation as ids, and how its replies are read as they stream.

Rendering is the `renderers` package's where it covers the family. A family listed here has a streaming parser and
is known to write each turn independently of the others, both proven by properties (docs/rendering.md). Any other name
that the package knows can be opened too: its replies are parsed as a whole, its bridge sees the whole history. So can
a folder's own template, with vLLM's parsers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from lego.errors import RenderError
from lego.trajectory.calls import CallReader, HermesReader, PlainReader
from lego.trajectory.deepseek import DeepSeekParser, section_marks
from lego.trajectory.harmony import HarmonyParser, harmony_marks
from lego.trajectory.llama import LlamaParser
from lego.trajectory.messages import Tool
from lego.trajectory.parse import Grammar, StreamParser, TaggedParser
from lego.trajectory.template import DATE, templated_text
from lego.trajectory.tokenizer import Tokenizer, load_template_tokenizer, token_id
from lego.trajectory.vllm_reader import PREFIX, VllmReader
from lego.trajectory.xml_calls import XmlReader

OpenParser = Callable[[Tokenizer, frozenset[int], Sequence[Tool], Sequence[int]], StreamParser]
"""(tokenizer, stop ids, tools, the last ids of the prompt) -> a parser for one reply."""


@dataclass(frozen=True)
class Family:
    """renderer: makes the renderer. parser: makes a parser for one reply. marks: tokens that a vocabulary of this
    family must have. shows_tools: its template writes tools and calls, so that they can be compared with a tokenizer's
    own. names_results: a tool's result is written with the tool's name. thinking_end: what ends the thinking that the
    generation prompt opens, where the template writes what follows as a message of its own.
    """

    renderer: Callable[[Tokenizer], Any]
    parser: OpenParser
    marks: tuple[str, ...]
    shows_tools: bool = True
    names_results: bool = False
    thinking_end: str = ""


def open_renderer(tokenizer: Tokenizer, name: str) -> Any:
    """The renderer of a family, by our name for it or by the `renderers` package's.

    Raises RenderError (a user fault) for a name nobody knows or a tokenizer without the family's marks.
    """
    try:
        if name.startswith(PREFIX):
            return VllmReader(tokenizer, _packaged("default")(tokenizer), name.removeprefix(PREFIX))
        return FAMILIES[name].renderer(tokenizer) if name in FAMILIES else _packaged(name)(tokenizer)
    except (ValueError, KeyError, AssertionError, NotImplementedError) as error:
        raise RenderError(
            f"no renderer {name!r} for the tokenizer of {tokenizer.name_or_path}: {error}",
            hint=f"set policy.renderer to auto, {', '.join(FAMILIES)}, another name the renderers package knows, or "
            "vllm:TOOLS+THINKING (docs/rendering.md)",
            fault="user",
        ) from error


def with_template(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer as transformers opens it, which can write by its own template."""
    has_template = hasattr(tokenizer, "apply_chat_template")
    return tokenizer if has_template else load_template_tokenizer(tokenizer.name_or_path)


def _packaged(name: str, **options: Any) -> Callable[[Tokenizer], Any]:
    def make(tokenizer: Tokenizer) -> Any:
        from renderers import base, configs

        config: Any = configs.config_from_name(name)
        if name == "default":
            tokenizer = with_template(tokenizer)
            if not getattr(tokenizer, "chat_template", True):
                raise ValueError("it has no chat template")
            return base.create_renderer(tokenizer, config)
        try:
            # Bridges that keep sampled thinking, where the family can.
            config = type(config)(thinking_retention="all", **options)
        except ValueError:
            config = type(config)(**options)
        return base.create_renderer(tokenizer, config)

    return make


def _chatml(tokenizer: Tokenizer) -> Any:
    from lego.trajectory.chatml import ChatMLRenderer

    return ChatMLRenderer(tokenizer, _default_system(tokenizer))


def _tiny_chatml(tokenizer: Tokenizer) -> Any:
    from lego.trajectory.chatml import TinyChatMLRenderer

    return TinyChatMLRenderer(tokenizer)


def _gemma(tokenizer: Tokenizer) -> Any:
    from lego.trajectory.gemma import GemmaRenderer

    return GemmaRenderer(tokenizer)


def _qwen_coder(tokenizer: Tokenizer) -> Any:
    from lego.trajectory.qwen_coder import QwenCoderRenderer

    return QwenCoderRenderer(tokenizer)


def _gpt_oss(tokenizer: Tokenizer) -> Any:
    try:
        return _packaged("gpt-oss", conversation_start_date=DATE)(tokenizer)
    except RuntimeError as error:
        raise RenderError(
            f"the encoding of GPT-OSS could not be loaded: {error}",
            hint="set TIKTOKEN_ENCODINGS_BASE to a folder that holds o200k_base.tiktoken",
            fault="user",
        ) from error


def _default_system(tokenizer: Tokenizer) -> str:
    """The system turn that the tokenizer's own ChatML template gives a conversation without one; empty for none."""
    template = getattr(tokenizer, "chat_template", None)
    if not isinstance(template, str):
        return ""
    try:
        text = templated_text(template, {}, [{"role": "user", "content": "q"}], None, False)
    except RenderError:
        return ""
    mark, (opening, user, _) = "<|im_start|>system\n", text.partition("<|im_end|>\n<|im_start|>user\nq")
    return opening.removeprefix(mark) if user and opening.startswith(mark) else ""


def _tagged(reader: type[CallReader], strip: bool = True) -> OpenParser:
    def make(
        tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool], prompt_tail: Sequence[int]
    ) -> StreamParser:
        think, think_end, call, call_end = (
            token_id(tokenizer, mark) for mark in ("<think>", "</think>", "<tool_call>", "</tool_call>")
        )
        grammar = Grammar(stop_ids, think, think_end, call, call_end, strip, reader)
        return TaggedParser(tokenizer, grammar, tools, thinking=_opens_thinking(grammar, prompt_tail))

    return make


def _opens_thinking(grammar: Grammar, prompt_tail: Sequence[int]) -> bool:
    for token in reversed(prompt_tail):
        if token in grammar.stop_ids or token == grammar.think_end:
            return False
        if token == grammar.think:
            return True
    return False


def _plain(
    tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool], prompt_tail: Sequence[int]
) -> StreamParser:
    return TaggedParser(tokenizer, Grammar(stop_ids), tools)


def _llama(
    tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool], prompt_tail: Sequence[int]
) -> StreamParser:
    return LlamaParser(tokenizer, stop_ids, tools)


def _harmony(
    tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool], prompt_tail: Sequence[int]
) -> StreamParser:
    return HarmonyParser(tokenizer, harmony_marks(tokenizer), prompt_tail)


def _deepseek(
    tokenizer: Tokenizer, stop_ids: frozenset[int], tools: Sequence[Tool], prompt_tail: Sequence[int]
) -> StreamParser:
    return DeepSeekParser(tokenizer, section_marks(tokenizer, stop_ids), tools)


_QWEN = ("<|im_start|>", "<think>", "<tool_call>")

FAMILIES: dict[str, Family] = {
    "qwen3": Family(_packaged("qwen3"), _tagged(HermesReader), _QWEN),
    "qwen3-coder": Family(_qwen_coder, _tagged(XmlReader), _QWEN),
    "qwen3.5": Family(_packaged("qwen3.5"), _tagged(XmlReader), _QWEN),
    "qwen3.6": Family(_packaged("qwen3.6"), _tagged(XmlReader), _QWEN),
    "llama-3": Family(_packaged("llama-3"), _llama, ("<|start_header_id|>", "<|eom_id|>")),
    "gemma-3": Family(_gemma, _plain, ("<start_of_turn>",), shows_tools=False),
    "gpt-oss": Family(_gpt_oss, _harmony, ("<|start|>", "<|channel|>"), names_results=True, thinking_end="<|end|>"),
    "deepseek-v3": Family(_packaged("deepseek-v3"), _deepseek, ("<｜User｜>", "<｜tool▁sep｜>"), shows_tools=False),
    "chatml": Family(_chatml, _plain, ("<|im_start|>",), shows_tools=False),
    "tiny-chatml": Family(_tiny_chatml, _tagged(PlainReader, strip=False), ("<|im_start|>", "<tool_call>")),
}
