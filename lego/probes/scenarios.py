"""What a harness is put through by `lego check --harness`: scripts over one small bug fix, from plain to rough."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lego.config.schema import TaskSource, TasksSection
from lego.engine.base import IntArray
from lego.engine.forced import Aside
from lego.errors import RenderError
from lego.harness.spec import HarnessSpec
from lego.probes.proof import Captured
from lego.rollout.script import tools_of
from lego.rollout.settings import Sampler
from lego.tasks.task import DemoStep, Task
from lego.trajectory.messages import Message, ToolCall
from lego.trajectory.render import Rendering

TASKS = TasksSection(train=[TaskSource(source="family", name="off-by-one", count=1, seed=1)])
"""One generated task; its image is the one that all generated tasks share."""

MAX_OUTPUT = 1024
"""Tokens that a call of a check may sample."""

_NOISE = range(1000, 4200, 400)
"""Each noisy step prints the numbers from one of these to the next: 2,000 tokens, where digits are tokens."""
_ROOM = 12_000
"""Tokens of context beyond the plain history's: less than all the noise."""

_SUMMARY = "SUMMARY OF THE WORK SO FAR: the comparison in the named file was read; it is off by one."
_ASKS_FOR_SUMMARY = re.compile("summar|handoff|snapshot", re.IGNORECASE)
_HANDS_OVER = re.compile("picking up work from a previous|has a few questions for you", re.IGNORECASE)
"""Questions and answers between a harness's old context and its new one, which follow the summary."""


@dataclass(frozen=True)
class Scenario:
    """`replies` are what the script says before it submits. `context`: the context window, from what the plain
    scenario captured; None leaves the run's. `happened`: why what the scenario is for did not come about, or "".
    `whole`: the harness must take every turn, and end by itself as its spec says. `asides`: requests for a summary
    are answered beside the script. `spoiled`: the reply whose call gets arguments that are no JSON, if the family
    writes them as JSON.
    """

    name: str
    about: str
    applies: Callable[[HarnessSpec], bool]
    replies: Callable[[Task, HarnessSpec], list[Message]]
    context: Callable[[Captured], int] | None = None
    happened: Callable[[Captured], str] = lambda captured: ""
    whole: bool = True
    asides: bool = False
    spoiled: int = -1

    def script(self, task: Task, sampler: Sampler, spec: HarnessSpec, rendering: Rendering) -> list[list[int]]:
        """The completion ids of each turn: `lego.rollout.script.Script`."""
        said = [*self.replies(task, spec), *[spec.submit_turn()] * spec.script.submits]
        turns = [_encode(task, reply, spec, rendering) for reply in said]
        if spec.script.style == "tool" and self.spoiled >= 0:
            turns[self.spoiled] = _without_end(turns[self.spoiled], rendering)
        return turns

    def aside(self, rendering: Rendering) -> Aside:
        """What answers requests that the script does not foresee: here, those for a summary."""

        def answer(prompt_ids: IntArray) -> Sequence[int] | None:
            before, asked = _last_messages(prompt_ids, rendering)
            # What comes of a summary holds it, and may speak of it.
            wants = _ASKS_FOR_SUMMARY.search(asked) and _SUMMARY not in before + asked
            if not self.asides or not (wants or _HANDS_OVER.search(asked)):
                return None
            return rendering.encode_reply([Message("user", asked)], Message("assistant", _SUMMARY), [])

        return answer


def _encode(task: Task, reply: Message, spec: HarnessSpec, rendering: Rendering) -> list[int]:
    before, tools = [Message("user", task.instruction)], tools_of(spec)
    try:
        return rendering.encode_reply(before, reply, tools)
    except RenderError:
        # A family without thinking says the rest.
        return rendering.encode_reply(before, replace(reply, reasoning=None), tools)


def _without_end(turn: list[int], rendering: Rendering) -> list[int]:
    """A turn whose last call's JSON never closes, tokenised as a policy might say it."""
    before, end, after = rendering.decode(turn).rpartition('"}}')
    return rendering.tokenizer.encode(before + after, add_special_tokens=False) if end else turn


def _last_messages(prompt_ids: IntArray, rendering: Rendering) -> tuple[str, str]:
    """The last two messages of a prompt, as far as the family ends each with a stop id."""
    ends = [0, 0, 0, *np.flatnonzero(np.isin(prompt_ids, rendering.stop_ids)).tolist()]
    before, asked = prompt_ids[ends[-3] : ends[-2]], prompt_ids[ends[-2] : ends[-1] or None]
    return rendering.decode(before), rendering.decode(asked)


def _look(task: Task) -> DemoStep:
    return DemoStep(
        task.demonstration[0].command, "First I look — at “what is there”.", "The task names one file. Read it first."
    )


def _fix(task: Task) -> DemoStep:
    return DemoStep(task.demonstration[-1].command, reasoning="One operator is wrong:\n\tit is off by one.")


def _try(task: Task) -> DemoStep:
    """A command whose JSON can be written in several ways: quotes, backslashes, letters beyond ASCII."""
    file = next(iter(task.environment.workspace)).rpartition("/")[2]
    return DemoStep(f'python3 -B -c \'import ast; ast.parse(open("{file}").read()); print("é \\u00e9 <&>", 1 < 2)\'')


def _plain(task: Task, spec: HarnessSpec) -> list[Message]:
    return [spec.script_turn(step) for step in (_look(task), _fix(task), _try(task))]


def _overflow(task: Task, spec: HarnessSpec) -> list[Message]:
    # One line each: a harness that reads a terminal sees no more than so many lines.
    noise = [DemoStep(f"seq -s , {begin} {begin + _NOISE.step - 1}", f"Noise from {begin}.") for begin in _NOISE]
    return [spec.script_turn(step) for step in (_look(task), *noise, _fix(task), _try(task))]


def _rough(task: Task, spec: HarnessSpec) -> list[Message]:
    """Two calls at once; a call of a tool that is not there, one that is to be spoiled (in text: two commands at
    once, then none); after the fix a reply that is longer than a reply may be."""
    look, fix, again = (spec.script_turn(step) for step in (_look(task), _fix(task), _try(task)))
    long = Message("assistant", "I think on. " * MAX_OUTPUT)
    if spec.script.style == "text":
        return [look, replace(look, content=f"{look.content}\n{again.content}"), Message("assistant", "Hm."), fix, long]
    both = replace(again, tool_calls=(*look.tool_calls, *again.tool_calls))
    unknown = Message("assistant", "", tool_calls=(ToolCall("", "no_such_tool", '{"command": "ls"}'),))
    return [look, both, unknown, again, fix, long]


def _compacted(captured: Captured) -> str:
    return "" if captured.roots + captured.forks > 1 else "its history was never compacted"


def _was_cut(captured: Captured) -> str:
    return "" if captured.finishes.get("length") else "no reply was cut by its length"


SCENARIOS = (
    Scenario("plain", "read, fix, try, submit", lambda spec: True, _plain),
    Scenario(
        "overflow",
        "the history outgrows the context, and is compacted",
        lambda spec: spec.limits.overflow == "compact",
        _overflow,
        context=lambda plain: plain.longest + _ROOM,
        happened=_compacted,
        whole=False,
        asides=True,
    ),
    Scenario(
        "rough",
        "parallel calls, malformed calls, a reply cut by its length",
        lambda spec: True,
        _rough,
        happened=_was_cut,
        whole=False,
        spoiled=3,
    ),
)
