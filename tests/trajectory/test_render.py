"""Rendering: continuation by raw ids equals the one-shot rendering outside sampled tokens."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import Qwen3RendererConfig, create_renderer

from lego.errors import RenderError
from lego.trajectory.arrays import as_ids
from lego.trajectory.families import FAMILIES as PROVEN
from lego.trajectory.messages import Message, ToolCall
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import Tokenizer, load_tokenizer
from tests.trajectory._support import FAMILIES, TOOLS, inputs, mark, rendering, replies, tokenizer


def tools_of(family: str) -> tuple:
    return () if family == "chatml" else TOOLS


@pytest.mark.parametrize("family", ["tiny-chatml", "chatml"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_continuing_equals_rendering_at_once(family: str, data: st.DataObject) -> None:
    """Where replies are sampled as the family writes them, continued ids are the one-shot rendering's ids."""
    r, tools = rendering(family), tools_of(family)
    messages = data.draw(inputs(first=True))
    prompt = r.render(messages, tools)
    for _ in range(data.draw(st.integers(1, 4))):
        reply = data.draw(replies(family))
        completion = r.encode_reply(messages, reply, tools)
        new = data.draw(inputs())
        added = r.extend(as_ids(prompt), as_ids(completion), new, tools)
        assert added is not None
        messages = [*messages, reply, *new]
        prompt = [*prompt, *completion, *added]
        assert prompt == r.render(messages, tools)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_qwen3_continues_as_its_own_bridge_does(data: st.DataObject) -> None:
    """The bridge of `renderers` on the whole history and ours on the turn alone add the same ids."""
    r = rendering("qwen3")
    prompt = r.render(data.draw(inputs(first=True)), TOOLS)
    some = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "so ", "{}", "\n", "a\u4f60"])
    completion = tokenizer().encode("".join(data.draw(st.lists(some, max_size=6))))
    completion += data.draw(st.sampled_from([[], [mark("<|im_end|>")], [mark("<|endoftext|>")]]))
    new = data.draw(inputs())
    dicts = [{"role": message.role, "content": message.content} for message in new]
    bridged = r.renderer.bridge_to_next_turn(prompt, completion, dicts, tools=None)
    ours = r.extend(as_ids(prompt), as_ids(completion), new, TOOLS)
    assert ours is not None
    if bridged is not None:
        assert list(bridged.token_ids) == [*prompt, *completion, *ours]
    else:
        assert completion[-1:] and completion[-1] in r.stop_ids


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_qwen3_equals_rendering_at_once_outside_thinking(data: st.DataObject) -> None:
    """Within a tool cycle the template keeps thinking, so continuing is the one-shot rendering there too."""
    r = rendering("qwen3")
    messages = data.draw(inputs(first=True))
    prompt = r.render(messages, TOOLS)
    for _ in range(data.draw(st.integers(1, 3))):
        drawn = data.draw(replies("qwen3"))
        reply = Message("assistant", drawn.content, drawn.reasoning or "hm", drawn.tool_calls)
        completion = r.encode_reply(messages, reply, TOOLS)
        new = [Message("tool", "r" + message.content) for message in data.draw(inputs())]
        added = r.extend(as_ids(prompt), as_ids(completion), new, TOOLS)
        assert added is not None
        messages = [*messages, reply, *new]
        prompt = [*prompt, *completion, *added]
        assert prompt == r.render(messages, TOOLS)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cut_reply_is_closed_by_added_ids(family: str) -> None:
    r, tools = rendering(family), tools_of(family)
    prompt = as_ids(r.render([Message("user", "go")], tools))
    whole = as_ids([*tokenizer().encode("half a sen"), mark("<|im_end|>")])
    new = [Message("user", "on")]
    after_whole = r.extend(prompt, whole, new, tools)
    assert after_whole is not None
    assert r.extend(prompt, whole[:-1], new, tools) == [mark("<|im_end|>"), *after_whole]
    assert r.extend(prompt, whole[:0], new, tools) == [mark("<|im_end|>"), *after_whole]
    thinking = as_ids([mark("<think>"), *tokenizer().encode("hm")])
    if family != "chatml":
        closed = [mark("</think>"), mark("<|im_end|>"), *after_whole]
        assert r.extend(prompt, thinking, new, tools) == closed


@pytest.mark.parametrize("family", FAMILIES)
def test_what_cannot_be_proven_is_none(family: str) -> None:
    r, tools = rendering(family), tools_of(family)
    prompt = as_ids(r.render([Message("user", "go")], tools))
    completion = as_ids([*tokenizer().encode("so"), mark("<|im_end|>")])
    assert r.extend(prompt, completion, [], tools) is None
    assert r.extend(prompt, completion, [Message("assistant", "so"), Message("user", "on")], tools) is None
    stop_inside = as_ids([mark("<|im_end|>"), *tokenizer().encode("so")])
    assert r.extend(prompt, stop_inside, [Message("user", "on")], tools) is None


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_splicing_puts_raw_ids_where_the_reply_stood(family: str, data: st.DataObject) -> None:
    r, tools = rendering(family), tools_of(family)
    messages, raw = data.draw(inputs(first=True)), {}
    for _ in range(data.draw(st.integers(1, 3))):
        sampled = data.draw(st.lists(st.integers(0, len(tokenizer()) - 1), max_size=6))
        raw[len(messages)] = as_ids([*(i for i in sampled if i not in r.stop_ids), mark("<|im_end|>")])
        messages = [*messages, data.draw(replies(family)), *data.draw(inputs())]
    spliced, count = r.render_spliced(messages, tools, raw)
    assert count == len(raw)
    plain = r.render_spliced(messages, tools, {})
    assert plain == (r.render(messages, tools), 0)
    ids, at = as_ids(spliced), 0
    for completion in raw.values():
        lead = as_ids([mark("<|im_start|>"), *tokenizer().encode("assistant\n"), *completion])
        found = [i for i in range(at, len(ids)) if np.array_equal(ids[i : i + len(lead)], lead)]
        assert found
        at = found[0] + len(lead)
    cut, count = r.render_spliced(messages, tools, {i: ids[:-1] for i, ids in raw.items()})
    assert (cut, count) == plain


def test_a_spliced_reply_follows_the_generation_prompt_it_was_sampled_after() -> None:
    """With thinking off the prompt ends in an empty think block, which the rendered history leaves out."""
    renderer = create_renderer(tokenizer(), Qwen3RendererConfig(enable_thinking=False))
    r = Rendering("qwen3", tokenizer(), renderer, PROVEN["qwen3"])
    asked, on = [Message("user", "go")], [Message("user", "on")]
    raw = as_ids([*tokenizer().encode("so"), mark("<|im_end|>")])
    prompt = r.render(asked, TOOLS)
    added = r.extend(as_ids(prompt), raw, on, TOOLS)
    assert added is not None and tokenizer().encode("</think>")[0] in prompt
    assert r.render_spliced([*asked, Message("assistant", "so"), *on], TOOLS, {1: raw}) == ([*prompt, *raw, *added], 1)


def test_nothing_is_spliced_by_a_renderer_of_which_nothing_is_proven() -> None:
    r = Rendering("other", tokenizer(), create_renderer(tokenizer(), Qwen3RendererConfig()), None)
    messages = [Message("user", "go"), Message("assistant", "so"), Message("user", "on")]
    raw = as_ids([*tokenizer().encode("so"), mark("<|im_end|>")])
    assert r.render_spliced(messages, TOOLS, {1: raw}) == (r.render(messages, TOOLS), 0)


def test_tiny_chatml_is_short_and_verbatim() -> None:
    r = rendering("tiny-chatml")
    call = ToolCall("", "bash", '{"command": "cat  a\\n"}')
    ids = r.render([Message("user", "fix"), Message("assistant", "", None, (call,)), Message("tool", "x = 1")], TOOLS)
    assert r.decode(ids) == (
        "<|im_start|>user\nfix<|im_end|>\n<|im_start|>assistant\n<tool_call>bash\ncat  a\n</tool_call><|im_end|>\n"
        "<|im_start|>tool\nx = 1<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chatml_writes_tool_results_as_user_turns() -> None:
    assert rendering("chatml").decode(rendering("chatml").render([Message("tool", "out")], ())) == (
        "<|im_start|>user\nout<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("family", "reply"),
    [
        ("chatml", Message("assistant", "", None, (ToolCall("", "bash", "{}"),))),
        ("chatml", Message("assistant", "so", "because")),
        ("tiny-chatml", Message("assistant", "", None, (ToolCall("", "edit", '{"path": "a", "count": 1}'),))),
        ("tiny-chatml", Message("assistant", "a<tool_call>b")),
        ("qwen3", Message("assistant", "a<|im_end|>b")),
    ],
)
def test_replies_that_cannot_be_said_are_refused(family: str, reply: Message) -> None:
    with pytest.raises(RenderError):
        rendering(family).encode_reply([Message("user", "go")], reply, tools_of(family))


def test_chatml_refuses_tools_instead_of_hiding_them() -> None:
    with pytest.raises(RenderError) as refused:
        rendering("chatml").render([Message("user", "go")], TOOLS)
    assert refused.value.fault == "user"


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template(folder: Path, template: str) -> Tokenizer:
    """The stand-in vocabulary in a folder of its own, with this chat template."""
    shutil.copytree(tokenizer().name_or_path, folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(template)
    return load_tokenizer(folder)


def test_auto_takes_the_family_that_the_template_is(tmp_path: Path) -> None:
    assert open_rendering(with_template(tmp_path, CHATML), "auto").name == "chatml"
    assert open_rendering(tokenizer(), "auto", "Qwen/Qwen3-8B").name == "qwen3"


def test_auto_takes_no_family_without_tools_for_a_template_that_shows_them(tmp_path: Path) -> None:
    shows = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
    with pytest.raises(RenderError, match="not that of a known family"):
        open_rendering(with_template(tmp_path, shows), "auto")


def test_auto_says_what_to_set_where_the_template_is_no_familys(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="not that of a known family") as unknown:
        open_rendering(with_template(tmp_path, "s" + CHATML), "auto")
    assert unknown.value.fault == "user"
    assert (
        "policy.renderer" in unknown.value.hint and "chatml" in unknown.value.hint and "default" in unknown.value.hint
    )


def test_a_conversation_that_the_template_refuses_is_a_render_error(tmp_path: Path) -> None:
    refuses = "{% if messages | length > 1 %}{{ raise_exception('too long') }}{% endif %}" + CHATML
    r = open_rendering(with_template(tmp_path, refuses), "default")
    assert r.render([Message("user", "go")], ())
    with pytest.raises(RenderError, match="too long"):
        r.render([Message("user", "go"), Message("assistant", "so"), Message("user", "on")], ())


def test_default_renders_afresh_by_the_template_itself(tmp_path: Path) -> None:
    r = open_rendering(with_template(tmp_path, "s" + CHATML), "default")
    prompt = as_ids(r.render([Message("user", "go")], ()))
    assert prompt[0] == tokenizer().encode("s")[0]
    completion = as_ids([*tokenizer().encode("so"), mark("<|im_end|>")])
    assert r.extend(prompt, completion, [Message("user", "on")], ()) is None
    assert r.parse(completion.tolist(), ()).message == Message("assistant", "so")


def test_unknown_names_and_tokenizers_are_user_faults(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RenderError) as unknown:
        open_rendering(tokenizer(), "qwen33")
    assert unknown.value.fault == "user"
    with pytest.raises(RenderError, match="has no chat template") as bare:
        open_rendering(tokenizer(), "auto")
    assert bare.value.fault == "user" and "policy.renderer" in bare.value.hint
    with pytest.raises(RenderError) as missing:
        load_tokenizer(tmp_path / "nothing")
    assert missing.value.fault == "user"


def test_opening_a_rendering_loads_no_torch() -> None:
    script = (
        "import sys; from lego.trajectory.tokenizer import load_tokenizer;"
        "from lego.trajectory.render import open_rendering;"
        f"open_rendering(load_tokenizer({tokenizer().name_or_path!r}), 'tiny-chatml');"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
