"""The format of Qwen3-Coder, which the `renderers` package has for a model that thinks as well."""

from __future__ import annotations

from typing import Any

from renderers.base import RenderedTokens
from renderers.configs import PrimeQwen3RendererConfig
from renderers.prime_qwen3 import PrimeQwen3Renderer

from lego.trajectory.tokenizer import Tokenizer
from lego.trajectory.turns import Turn


class QwenCoderRenderer(PrimeQwen3Renderer):
    """The same without thinking, of which Qwen3-Coder's template knows nothing: it leaves it out of a history."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer, PrimeQwen3RendererConfig(thinking_retention="all"))

    def render(self, messages: list[Turn], **options: Any) -> RenderedTokens:
        said = [{key: value for key, value in turn.items() if key != "reasoning_content"} for turn in messages]
        return super().render(said, **options)
