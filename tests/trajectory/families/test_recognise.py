"""A folder's family, by its own chat template, and the families held to the templates of their vocabularies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import RenderError
from lego.trajectory.messages import Message
from lego.trajectory.recognise import family_of
from lego.trajectory.template import templated_text
from lego.trajectory.tokenizer import load_tokenizer
from lego.trajectory.turns import tool_dicts, turn_of
from tests.trajectory.families._support import (
    CASES,
    FOLDER,
    Case,
    examples,
    inputs,
    rendering,
    replies,
    tokenizer,
    tools_of,
)

TEMPLATES = {"qwen3": "qwen3", "llama-3": "llama-3", "gemma-3": "gemma-3", "deepseek-v3": "deepseek-v3"}
"""The vocabularies that come with their model's chat template, and its family."""


@pytest.mark.parametrize(("vocabulary", "family"), TEMPLATES.items())
def test_auto_knows_a_folder_by_its_template(vocabulary: str, family: str) -> None:
    assert family_of(tokenizer(vocabulary)) == family


@pytest.mark.parametrize(("vocabulary", "hint"), [("qwen3.6", "qwen3.6"), ("gpt-oss", "gpt-oss")])
def test_auto_without_a_template_says_what_to_set(vocabulary: str, hint: str) -> None:
    with pytest.raises(RenderError, match="no chat template") as unknown:
        family_of(tokenizer(vocabulary))
    assert unknown.value.fault == "user" and "policy.renderer to " in unknown.value.hint and hint in unknown.value.hint


def test_auto_refuses_a_template_that_differs_in_one_turn(tmp_path: Path) -> None:
    tokenizer("gemma-3")
    shutil.copytree(FOLDER / "gemma-3", tmp_path / "changed")
    changed = load_tokenizer(tmp_path / "changed")
    changed.chat_template = str(changed.chat_template).replace("<end_of_turn>\n", "<end_of_turn>")  # type: ignore[attr-defined]
    with pytest.raises(RenderError, match="not that of a known family"):
        family_of(changed)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.vocabulary == case.family in TEMPLATES], ids=lambda case: case.id
)
@examples(40)
@given(data=st.data())
def test_rendering_is_the_template(case: Case, data: st.DataObject) -> None:
    """Every id is that of the template which came with the vocabulary, wherever the template has an answer.

    DeepSeek V3's template writes calls in a way of its own, which its renderer does not follow: text alone there.
    """
    r, tools = rendering(case), tools_of(case) if case.family != "deepseek-v3" else ()
    messages = data.draw(inputs(case, first=True))
    for _ in range(data.draw(st.integers(0, 3))):
        reply = data.draw(replies(case if tools else Case(case.family, case.vocabulary)))
        new = data.draw(inputs(case, roles=("user", "tool") if tools else ("user",)))
        messages = [*messages, reply, *(Message(m.role, "w" + m.content) for m in new)]
    marks = r.tokenizer.special_tokens_map  # type: ignore[attr-defined]
    turns = [turn_of(message) for message in messages]
    text = templated_text(r.tokenizer.chat_template, marks, turns, tool_dicts(tools), True)  # type: ignore[attr-defined]
    assert r.render(messages, tools) == r.tokenizer.encode(text, add_special_tokens=False)
