"""What a scripted trial says: a task's demonstration, or its solution as one command, in the harness's own protocol."""

from __future__ import annotations

from collections.abc import Callable

from lego.errors import TaskError
from lego.harness.spec import HarnessSpec
from lego.rollout.settings import Sampler
from lego.tasks.task import DemoStep, Task
from lego.trajectory.messages import Message, Tool
from lego.trajectory.render import Rendering

Script = Callable[[Task, Sampler, HarnessSpec, Rendering], list[list[int]]]
"""What a trial of a task in a harness says: the completion ids of each turn."""


def steps_of(task: Task, sampler: Sampler) -> tuple[DemoStep, ...]:
    """The steps of the script. Raises TaskError where the task has neither demonstration nor solution."""
    if sampler == "script" and task.demonstration:
        return task.demonstration
    solve = task.solution.get("solve.sh")
    if solve is None:
        raise TaskError(f"{task.id} has neither a demonstration nor solution/solve.sh, so it cannot be scripted")
    # A subshell is one command, also for harnesses that take one at a time; and `set -e` ends no shell that stays open.
    return (DemoStep(command=f"(\n{solve.data.decode().rstrip()}\n)", content="I apply the fix."),)


def turns_of(task: Task, sampler: Sampler, spec: HarnessSpec, rendering: Rendering) -> list[list[int]]:
    """The completion ids of each turn, the last ones submitting the work."""
    if task.steps:
        return [turn for step in task.steps for turn in turns_of(step.task, sampler, spec, rendering)]
    before = [Message("user", task.instruction)]
    tools = tools_of(spec)
    replies = [spec.script_turn(step) for step in steps_of(task, sampler)] + [spec.submit_turn()] * spec.script.submits
    return [rendering.encode_reply(before, reply, tools) for reply in replies]


def tools_of(spec: HarnessSpec) -> list[Tool]:
    """The tools that the script calls, as far as rendering a reply asks for them."""
    if spec.script.style == "text":
        return []
    argument = spec.script.argument
    schema = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    tools = [Tool(spec.script.tool, "", schema)]
    if "tool" in spec.script.submit:
        tools.append(Tool(spec.script.submit["tool"], "", {"type": "object", "properties": {}}))
    return tools
