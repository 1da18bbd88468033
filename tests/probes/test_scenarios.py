from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lego.config.places import harness_specs_dir
from lego.harness.spec import load_spec
from lego.probes.bench import make_policy
from lego.probes.scenarios import MAX_OUTPUT, SCENARIOS, TASKS, Scenario
from lego.rollout.script import tools_of
from lego.tasks.load import load_tasks
from lego.trajectory.messages import Message
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_tokenizer
from stages import check

SPECS = sorted(path.stem for path in harness_specs_dir().glob("*.yaml"))


@pytest.fixture(scope="module")
def rendering(tmp_path_factory: pytest.TempPathFactory) -> Rendering:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    make_policy(folder, 65536)
    return open_rendering(load_tokenizer(folder), "qwen3")


def named(name: str) -> Scenario:
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


def test_the_command_offers_every_scenario() -> None:
    assert [scenario.name for scenario in SCENARIOS] == list(check.SCENARIOS)


@pytest.mark.parametrize("name", SPECS)
def test_every_shipped_harness_can_be_told_every_scenario(name: str, rendering: Rendering) -> None:
    spec, (task,) = load_spec(name), load_tasks(TASKS.train)
    for scenario in SCENARIOS:
        turns = scenario.script(task, "script", spec, rendering)
        assert len(turns) == len(scenario.replies(task, spec)) + spec.script.submits
        said = [rendering.parse(turn, tools_of(spec)).message for turn in turns]
        everything = " ".join(m.content + "".join(call.arguments for call in m.tool_calls) for m in said)
        fix = task.demonstration[-1].command
        assert fix in everything or fix.replace("'", "\\'") in everything
        over_long = [turn for turn in turns if len(turn) > MAX_OUTPUT]
        assert len(over_long) == (scenario.name == "rough")


def test_a_rough_script_calls_twice_at_once_and_what_is_not_there(rendering: Rendering) -> None:
    spec, (task,) = load_spec("claude-code"), load_tasks(TASKS.train)
    replies = named("rough").replies(task, spec)
    assert sorted(len(reply.tool_calls) for reply in replies) == [0, 1, 1, 1, 1, 2]
    names = {call.name for reply in replies for call in reply.tool_calls}
    assert names == {spec.script.tool, "no_such_tool"}
    turns = [rendering.parse(turn, tools_of(spec)) for turn in named("rough").script(task, "script", spec, rendering)]
    assert [at for at, turn in enumerate(turns) if turn.malformed] == [named("rough").spoiled]
    assert turns[3].message.tool_calls[0].name == spec.script.tool


def test_a_request_for_a_summary_is_answered_beside_the_script(rendering: Rendering) -> None:
    def prompt(*messages: Message) -> np.ndarray:
        return np.asarray(rendering.render(messages, []), np.int32)

    first = Message("user", "Fix a.py. Nothing here is to be told in short.")
    ask = Message("user", "Your task is to create a detailed summary of the conversation so far.")
    aside = named("overflow").aside(rendering)
    assert aside(prompt(first)) is None
    answer = aside(prompt(first, Message("assistant", "I look."), ask))
    assert answer is not None
    summary = rendering.parse(list(answer), []).message.content
    goes_on = Message("user", f"This goes on from a conversation; the summary is: {summary}")
    assert aside(prompt(goes_on)) is None, "what came of the summary is not asked for again"
    told = Message("user", "The conversation was summarised. Continue.")
    assert aside(prompt(Message("user", "What did we do?"), Message("assistant", summary), told)) is None
    hands_over = Message("user", f"You are picking up work from a previous AI agent. Its summary: {summary}. Ask.")
    assert aside(prompt(hands_over)) is not None
    assert named("plain").aside(rendering)(prompt(first, Message("assistant", "I look."), ask)) is None


def test_a_policy_made_for_checks_reads_english_and_code_in_few_tokens(rendering: Rendering) -> None:
    text = Path(__file__).read_text()
    assert len(rendering.tokenizer.encode(text, add_special_tokens=False)) < len(text) / 2
