"""Plain ChatML is, id for id, what SmolLM2's own chat template gives, its default system turn included."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lego.trajectory.arrays import as_ids
from lego.trajectory.messages import Message
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_template_tokenizer, load_tokenizer
from tests.conftest import smollm
from tests.trajectory._support import PLAIN, mark, new_folder, tokenizer

# As it stands in SmolLM2-135M-Instruct (Apache-2.0).
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n"
    "' + message['content'] + '<|im_end|>' + '\n"
    "'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n"
    "' }}{% endif %}"
)
DEFAULT = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"


def folder_with(template: str | None, *, inside: bool = False) -> Path:
    """A tokenizer's folder, its template in its own file, or inside tokenizer_config.json as older ones have it."""
    folder = new_folder()
    shutil.copytree(tokenizer().name_or_path, folder, dirs_exist_ok=True)
    if template is not None and not inside:
        (folder / "chat_template.jinja").write_text(template)
    config: dict[str, Any] = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if inside:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@cache
def small() -> tuple[Rendering, Any]:
    folder = folder_with(SMOLLM2)
    return open_rendering(load_tokenizer(folder), "chatml"), load_template_tokenizer(str(folder))


@cache
def real() -> tuple[Rendering, Any]:
    folder = smollm()
    return open_rendering(load_tokenizer(folder), "chatml"), load_template_tokenizer(str(folder))


def by_template(templated: Any, messages: list[Message]) -> list[int]:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    return list(templated.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


CONVERSATIONS = st.lists(
    st.builds(Message, st.sampled_from(["system", "user", "assistant"]), PLAIN), min_size=1, max_size=6
)


@settings(max_examples=60, deadline=None)
@given(CONVERSATIONS)
def test_any_conversation_is_rendered_as_the_template_does(messages: list[Message]) -> None:
    rendering, templated = small()
    assert rendering.render(messages, ()) == by_template(templated, messages)


@pytest.mark.parametrize("inside", [False, True])
def test_a_conversation_without_a_system_turn_gets_the_default_one(inside: bool) -> None:
    rendering = open_rendering(load_tokenizer(folder_with(SMOLLM2, inside=inside)), "chatml")
    asked = rendering.decode(rendering.render([Message("user", "hi")], ()))
    assert asked == DEFAULT + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    told = rendering.decode(rendering.render([Message("system", ""), Message("user", "hi")], ()))
    assert told == "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_what_is_added_to_a_conversation_has_no_default_turn() -> None:
    rendering, templated = small()
    before = [Message("user", "go")]
    reply, more = Message("assistant", "so"), [Message("user", "on")]
    prompt, completion = rendering.render(before, ()), rendering.encode_reply(before, reply, ())
    added = rendering.extend(as_ids(prompt), as_ids(completion), more, ())
    assert added is not None
    assert [*prompt, *completion, *added] == by_template(templated, [*before, reply, *more])


def test_the_default_turn_is_no_reply_and_is_spliced_over() -> None:
    rendering, _ = small()
    raw = as_ids([*tokenizer().encode("s"), *tokenizer().encode("o"), mark("<|im_end|>")])
    messages = [Message("user", "go"), Message("assistant", "so"), Message("user", "on")]
    ids, count = rendering.render_spliced(messages, (), {1: raw})
    assert count == 1 and rendering.decode(ids).startswith(DEFAULT)


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
        "<s><|im_start|>system\nx<|im_end|>\n<|im_start|>user\n{{ messages[0].content }}",
        "{{ raise_exception('no') }}",
        "{% if %}",
    ],
)
def test_other_templates_give_no_default(template: str | None) -> None:
    rendering = open_rendering(load_tokenizer(folder_with(template)), "chatml")
    assert rendering.decode(rendering.render([Message("user", "hi")], ())) == (
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_auto_finds_it_by_the_template() -> None:
    assert open_rendering(load_tokenizer(folder_with(SMOLLM2)), "auto").name == "chatml"


@settings(max_examples=60, deadline=None)
@given(CONVERSATIONS)
def test_the_real_tokenizer_agrees_with_its_own_template(messages: list[Message]) -> None:
    rendering, templated = real()
    whole = [Message(m.role, m.content.lstrip() if m.role == "assistant" else m.content) for m in messages]
    assert rendering.render(whole, ()) == by_template(templated, whole)
    # A reply that begins with a blank: encoded in one piece, the blank would fuse with the newline before it, which
    # the generation prompt holds. What the policy is asked to continue is that prompt, so it stays as it is.
    assert rendering.decode(rendering.render(messages, ())) == rendering.decode(by_template(templated, messages))


def test_the_real_template_is_the_one_above() -> None:
    _, templated = real()
    assert templated.chat_template == SMOLLM2
