from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings

from lego.config.places import harness_specs_dir
from lego.errors import HarnessError
from lego.harness.spec import load_spec
from lego.tasks.task import DemoStep
from tests._anything import spoilt

GOOD = """
name: x
dialect: openai_chat
install: {pip: {x: 1.0}}
run: {argv: [x, "{instruction}"]}
script: {style: tool, tool: bash, submit: {tool: submit}}
"""


def write(tmp_path, text):
    path = tmp_path / "x.yaml"
    path.write_text(textwrap.dedent(text))
    return path


def refusal(tmp_path, text):
    with pytest.raises(HarnessError) as caught:
        load_spec(write(tmp_path, text))
    assert caught.value.fault == "user" and "x.yaml" in caught.value.message
    return caught.value


@pytest.mark.parametrize("name", sorted(path.stem for path in harness_specs_dir().glob("*.yaml")))
def test_every_shipped_spec_loads_under_its_own_name(name):
    assert load_spec(name).name == name


def test_a_spec_by_path(tmp_path):
    spec = load_spec(write(tmp_path, GOOD))
    assert spec.install.pip == {"x": "1.0"} and spec.where.endswith("x.yaml")
    assert spec.done.ok == (0,) and not spec.needs_port


def test_a_name_nobody_has_suggests_the_nearest():
    with pytest.raises(HarnessError) as caught:
        load_spec("mini-swe-agnet")
    assert caught.value.hint == "did you mean mini-swe-agent?"


@pytest.mark.parametrize(
    ("change", "message", "hint"),
    [
        (("argv:", "argvv:"), "run.argvv: no such key", "did you mean argv?"),
        (("dialect: openai_chat\n", ""), "missing key dialect", ""),
        (("{instruction}", "{instructions}"), "no such placeholder {instructions}", "did you mean {instruction}?"),
        (("style: tool", "style: shout"), "script.style: expected tool | text, found 'shout'", ""),
        (("tool: bash, ", ""), "script.tool: needed by script.style tool", ""),
        (("{tool: submit}", "{shout: x}"), "script.submit: expected", ""),
        (("{tool: submit}", "{tool: submit}, submits: yes"), "script.submits: expected a number of times", ""),
        (
            ("style: tool, tool: bash", 'style: text, template: "{comand}"'),
            "script.template: no such placeholder {comand}",
            "known: content, command",
        ),
        (("argv: [x,", "argv: {x:"), "cannot read the spec", ""),
        (('[x, "{instruction}"]', "x"), "run.argv: expected a list of texts", ""),
        (("{pip: {x: 1.0}}", "{files: [gone.py]}"), "install.files", ""),
        (("dialect: openai_chat", "dialect: morse"), "dialect: expected openai_chat | openai_responses", ""),
        (("{pip: {x: 1.0}}", "{gem: {x: 1.0}}"), "install.gem: no such key", ""),
        (("{pip: {x: 1.0}}", "{pip: {x: 1}, npm: {y: 2}}"), "install: pip or npm, not both", ""),
        (("{pip: {x: 1.0}}", "{suite: Debian 13, pip: {x: 1}}"), "install.suite: expected the name of a", ""),
        (("{pip: {x: 1.0}}", "{redistributable: maybe, pip: {x: 1}}"), "install.redistributable: expected true", ""),
        (("run: {", "run: {memory: much, "), "run.memory: ", ""),
        (("run: {", "limits: {max_turns: often}\nrun: {"), "limits.max_turns: expected", ""),
        (("run: {", "run: {files: {x.json: a}, "), "run.files: x.json must be an absolute path", ""),
        (("run: {", "done: {ok: zero}\nrun: {"), "done.ok: expected a list of exit codes", ""),
    ],
)
def test_mistakes_are_named_with_their_place(tmp_path, change, message, hint):
    error = refusal(tmp_path, GOOD.replace(*change))
    assert message in error.message
    assert hint in error.hint


def test_an_empty_file_is_no_spec(tmp_path):
    assert "a spec is a mapping" in refusal(tmp_path, "").message


def test_files_are_read_from_beside_the_spec(tmp_path):
    (tmp_path / "agent.py").write_bytes(b"print(1)\n")
    text = GOOD.replace("{pip: {x: 1.0}}", "{files: [agent.py]}").replace("argv: [x,", "argv: [python,")
    spec = load_spec(write(tmp_path, text))
    assert spec.install.files == {"agent.py": b"print(1)\n"}


def test_a_step_as_a_tool_call():
    turn = load_spec("tiny-agent").script_turn(DemoStep('sed -i "s/é/\\"/" a', content="Fix.", reasoning="Hm."))
    (call,) = turn.tool_calls
    assert (turn.content, turn.reasoning, call.name, call.id) == ("Fix.", "Hm.", "bash", "")
    assert json.loads(call.arguments) == {"command": 'sed -i "s/é/\\"/" a'}
    assert "é" in call.arguments


def test_a_step_as_a_fenced_block():
    turn = load_spec("mini-swe-agent-text").script_turn(DemoStep("ls", content="Look."))
    assert turn.content == "Look.\n\n```mswea_bash_command\nls\n```" and not turn.tool_calls


def test_a_step_in_a_template(tmp_path):
    script = """
    script:
      style: text
      template: '{"why": "{content}", "keys": "{command}\\n", "wait": {"s": 1}}'
      submit: {text: '{"done": true}'}
      submits: 2
    """
    text = GOOD[: GOOD.index("script:")] + textwrap.dedent(script)
    spec = load_spec(write(tmp_path, text))
    turn = spec.script_turn(DemoStep('echo "{content} é\\n"\nls', content="Look."))
    assert json.loads(turn.content) == {
        "why": "Look.", "keys": 'echo "{content} é\\n"\nls\n', "wait": {"s": 1},
    } and not turn.tool_calls  # fmt: skip
    assert spec.submit_turn().content == '{"done": true}' and spec.script.submits == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tiny-agent", ("submit", "{}")),
        ("mini-swe-agent", ("bash", '{"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}')),
    ],
)
def test_submission_by_tool(name, said):
    (call,) = load_spec(name).submit_turn().tool_calls
    assert (call.name, call.arguments) == said


def test_submission_by_text():
    words = load_spec("claude-code").submit_turn()
    assert words.content and not words.tool_calls
    turn = load_spec("mini-swe-agent-text").submit_turn()
    assert turn.content.endswith("```mswea_bash_command\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")


SOUND: dict[str, Any] = {
    "name": "x", "dialect": "openai_chat", "install": {"pip": {"x": "1.0"}, "suite": "trixie", "packages": ["git"]},
    "run": {"argv": ["x", "{instruction}"], "env": {"A": "{token}"}, "files": {"/a": "{model}"}, "memory": "512m"},
    "limits": {"max_turns": "argv", "max_output": "env:N", "overflow": "compact"},
    "calls": {"subagent": {"header": "h"}, "auxiliary": [{"field": "f"}], "volatile": [{"match": "m"}]},
    "done": {"ok": [0], "turns": [3]}, "script": {"style": "tool", "tool": "bash", "submit": {"tool": "submit"}},
}  # fmt: skip


def loads_or_says_why(path: Path) -> None:
    try:
        load_spec(path)
    except HarnessError as error:
        assert error.fault == "user" and path.name in error.message
        assert "\n" not in error.message and error.message.encode() and len(error.message) < 4000


@settings(max_examples=60, deadline=None)
@given(spoilt(SOUND))
@example(SOUND | {"run": SOUND["run"] | {"memory": "9" * 400}})
@example(SOUND | {"run": SOUND["run"] | {"argv": ["x", "\0"]}})
def test_whatever_a_spec_holds_it_loads_or_its_line_says_why(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-spec.yaml"
    path.write_text(yaml.safe_dump(data))
    loads_or_says_why(path)


@pytest.mark.parametrize(
    "data", [b"\xff", b"\0", b"a: !!int x", b"a: &a [*a]", b"[" * 2000, b"? [a]\n: b", b"name: !!bool x"]
)
def test_bytes_of_any_kind(tmp_path, data):
    (tmp_path / "odd.yaml").write_bytes(data)
    with pytest.raises(HarnessError):
        load_spec(tmp_path / "odd.yaml")
    loads_or_says_why(tmp_path / "odd.yaml")
