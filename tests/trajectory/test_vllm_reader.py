"""vLLM's parsers over a folder's own template: `make test-vllm`. Skipped where vLLM is not installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import RenderError
from lego.trajectory.arrays import as_ids
from lego.trajectory.messages import Message, Tool
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.turns import arguments_of, comparable
from tests.conftest import missing
from tests.trajectory.families import _support as families

BASH = Tool("bash", "Runs it.", {"type": "object", "properties": {"command": {"type": "string"}}})
ASK = [Message("user", "go")]


def opened(parsers: str) -> Rendering:
    if find_spec("vllm") is None:
        missing("vllm", "not installed in this environment (tools/vllm.sh makes one)")
    return open_rendering(families.tokenizer("qwen3"), f"vllm:{parsers}")


def read(rendering: Rendering, text: str, tools: tuple[Tool, ...] = (BASH,)) -> Message:
    prompt = rendering.render(ASK, tools)
    return rendering.parse([*rendering.tokenizer.encode(text), rendering.stop_ids[0]], tools, prompt).message


@pytest.mark.parametrize(
    ("parsers", "text", "says", "thinks"),
    [
        ("granite", '<tool_call>[{"name": "bash", "arguments": {"command": "ls é"}}]', "", None),
        ("pythonic", '[bash(command="ls é")]', "", None),
        ("phi4_mini_json", 'functools[{"name": "bash", "arguments": {"command": "ls é"}}]', "", None),
        ("hermes+olmo3",
         '<think>why</think>so <tool_call>{"name": "bash", "arguments": {"command": "ls é"}}</tool_call>',
         "so ", "why"),
    ],
)  # fmt: skip
def test_calls_of_families_that_have_no_renderer_are_read(
    parsers: str, text: str, says: str, thinks: str | None
) -> None:
    reply = read(opened(parsers), text)
    (call,) = reply.tool_calls
    assert (reply.content, reply.reasoning, call.name) == (says, thinks, "bash")
    assert arguments_of(call.arguments) == {"command": "ls é"}


def test_what_cannot_be_read_stays_text_and_so_does_a_call_that_nobody_offered() -> None:
    text = '<tool_call>{"name": "bash", "argum'
    assert read(opened("hermes"), text) == Message("assistant", text)
    whole = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    assert not read(opened("hermes"), whole, ()).tool_calls


def test_every_call_is_rendered_by_the_template_afresh() -> None:
    ours, plain = opened("hermes"), open_rendering(families.tokenizer("qwen3"), "default")
    said = [*ASK, Message("assistant", "so"), Message("user", "on")]
    assert ours.render(said, (BASH,)) == plain.render(said, (BASH,))
    prompt, reply = as_ids(ours.render(ASK, ())), as_ids([*ours.tokenizer.encode("so"), ours.stop_ids[0]])
    assert ours.extend(prompt, reply, said[2:], ()) is None


@families.examples(20)
@given(data=st.data())
def test_hermes_reads_what_our_own_parser_reads(data: st.DataObject) -> None:
    case = families.CASES[0]
    ours, theirs = families.rendering(case), opened("hermes+qwen3")
    tools = families.tools_of(case)
    reply = data.draw(families.replies(case))
    ids = ours.encode_reply(ASK, reply, tools)
    prompt = ours.render(ASK, tools)
    assert comparable(theirs.parse(ids, tools, prompt).message) == comparable(ours.parse(ids, tools, prompt).message)


def test_wrong_names_and_tokenizers_are_one_line() -> None:
    with pytest.raises(RenderError, match="has no parser 'nonsense'; it has .*granite") as unknown:
        opened("nonsense")
    assert unknown.value.fault == "user"
    with pytest.raises(RenderError, match="tool call token"):
        opened("mistral")
    with pytest.raises(RenderError, match="say which parsers"):
        opened("")


def test_without_vllm_it_says_so() -> None:
    if find_spec("vllm") is not None:
        pytest.skip("vLLM is installed")
    with pytest.raises(RenderError, match="need vLLM") as lacking:
        open_rendering(families.tokenizer("qwen3"), "vllm:hermes")
    assert lacking.value.fault == "user"
