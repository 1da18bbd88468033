"""What can go wrong between a harness and its model, tried on real harnesses in real sandboxes: how the trial ends, and
that nothing is trained but what was sampled, in the context it was sampled in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from lego.harness.spec import HarnessSpec, load_spec
from lego.probes.matrix import must_hold
from lego.probes.scenarios import SCENARIOS, TASKS
from lego.rollout.script import tools_of
from lego.sandbox.podman import Podman
from lego.tasks.load import load_tasks
from lego.tasks.task import DemoStep
from lego.trajectory.messages import Message
from tests._tiny import tiny_policy
from tests.harness.faulty import Ended, FaultyEngine, FaultyProxy, run_faulty, weigh
from tests.harness.runners import built, built_task, skip_unless_asked_for
from tests.proxy.families import END, family, said, sampled
from tests.proxy.parts import Turn

__all__ = ["tiny_policy"]

pytestmark = pytest.mark.podman

(TASK,) = load_tasks(TASKS.train)
(FIXED,) = TASK.environment.workspace
SLOW = 3.0
"""Seconds before a slow first token: many of the proxy's keep-alives."""
NOISE = range(1000, 9000, 1000)
PATIENCE = 4
"""Seconds after which an impatient harness asks again."""
FIRST_BYTE = ("claude-code", "qwen-code")
"""Harnesses whose time-out is for the first byte alone; Claude Code's watch over the stream is never under 300 s."""
FULL = {
    "claude-code": 30_000, "mini-swe-agent": 10_000, "opencode": 36_000, "openhands": 45_000, "qwen-code": 90_000,
    "terminus-2": 12_000,
}  # fmt: skip
"""A context, in tokens, that the noise fills: the first prompts of the harnesses differ that much."""


@dataclass(frozen=True)
class Voice:
    """What a model of the family says in a harness's own protocol."""

    spec: HarnessSpec

    def says(self, reply: Message, **how: object) -> Turn:
        before = [Message("user", TASK.instruction)]
        return Turn("", raw=family().encode_reply(before, reply, tools_of(self.spec)), **{"pieces": 9, **how})  # type: ignore[arg-type]

    def runs(self, command: str, thinking: str, **how: object) -> Turn:
        return self.says(self.spec.script_turn(DemoStep(command, reasoning=thinking)), **how)

    def look(self, **how: object) -> Turn:
        return self.runs(TASK.demonstration[0].command, "Which operator — is “it”?", **how)

    def rest(self) -> list[Turn]:
        """From a look to the end."""
        fix = self.runs(TASK.demonstration[-1].command, "It is off by one.")
        return [self.look(), fix, *[self.says(self.spec.submit_turn()) for _ in range(self.spec.script.submits)]]

    def calls(self, name: str, arguments: str) -> Turn:
        return sampled("<tool_call>", f'\n{{"name": "{name}", "arguments": {arguments}', "</tool_call>", END)


class Late(asyncio.Event):
    """A gate that opens by itself."""

    async def wait(self) -> bool:  # type: ignore[override]
        await asyncio.sleep(SLOW)
        return True


class HangUp(asyncio.Event):
    """A gate that never opens, and at which the connection is lost."""

    proxy: FaultyProxy

    async def wait(self) -> bool:  # type: ignore[override]
        self.proxy.hang_up()
        return await super().wait()


@dataclass(frozen=True)
class Fault:
    """`turns`: what the model says before it does its work as it should, and how it fails. `noise`: those of them that
    are said until the history is compacted. `refused`: the request answered with 429. `impatient`: the harness waits
    for PATIENCE seconds alone."""

    turns: Callable[[Voice], list[Turn]] = lambda voice: []
    noise: bool = False
    max_output: int = 4000
    refused: int = 0
    impatient: bool = False


FAULTS = {
    "500": Fault(lambda voice: [voice.look(fail="out of memory")]),
    "429": Fault(refused=2),
    "overflow": Fault(
        lambda voice: [voice.runs(f"seq -s , {n} {n + 600}", f"Noise from {n}.") for n in NOISE],
        noise=True,
        max_output=1000,
    ),
    "malformed call": Fault(
        lambda voice: (
            [
                voice.calls(voice.spec.script.tool, f'{{"{voice.spec.script.argument}": "ls'),
                voice.calls("no_such_tool", '{"a": 1}}'),
            ]
            if voice.spec.script.style == "tool"
            else [said("I would rather talk.", "Hm."), said('{"analysis": "a", "commands": [{"keystrokes": "ls')]
        )
    ),
    "empty reply": Fault(lambda voice: [said("")]),
    "length stop": Fault(lambda voice: [said("I think on. " * 100, "Hm.")], max_output=300),
    "length stop in a call": Fault(lambda voice: [voice.runs("echo " + "x" * 900, "Hm.")], max_output=300),
    "cut stream": Fault(lambda voice: [voice.look(gated=4, fail="out of memory")]),
    "lost connection": Fault(lambda voice: [voice.look(gated=4, gate=HangUp())]),
    "slow first token": Fault(lambda voice: [voice.look(gate=Late())]),
    "duplicate in flight": Fault(
        # A time-out that ends with the first byte sees no token.
        lambda voice: [voice.look(gated=0 if voice.spec.name in FIRST_BYTE else 4, gate=asyncio.Event())],
        impatient=True,
    ),
}


IMPATIENT_RUNNER = (
    "import re, sys; program = sys.argv.pop(1); text = open(program).read();"
    f"text, found = re.subn('CALL_SECONDS = [0-9]+', 'CALL_SECONDS = {PATIENCE}', text); assert found;"
    "exec(compile(text, program, 'exec'), {'__name__': '__main__', '__file__': program})"
)


def impatient(spec: HarnessSpec) -> HarnessSpec:
    """The harness with a time-out of PATIENCE seconds in the place of its spec's own."""
    run = spec.run
    if spec.name == "claude-code":
        return replace(spec, run=replace(run, env={**run.env, "API_TIMEOUT_MS": f"{PATIENCE}000"}))
    if spec.name == "mini-swe-agent":
        return replace(spec, run=replace(run, argv=(*run.argv, "-c", f"model.model_kwargs.timeout={PATIENCE}")))
    if run.argv[0] == "python":
        return replace(spec, run=replace(run, argv=("python", "-c", IMPATIENT_RUNNER, *run.argv[1:])))
    files = {path: text.replace('"timeout": 900000', f'"timeout": {PATIENCE}000') for path, text in run.files.items()}
    assert files != run.files, "there is a time-out to shorten"
    return replace(spec, run=replace(run, files=files))


async def faulty(name: str, fault: Fault, podman: Podman, folder: Path, policy: Path) -> Ended:
    spec = load_spec(name)
    await built(podman, spec, folder)
    await built_task(podman, TASK, folder)
    voice = Voice(impatient(spec) if fault.impatient else spec)
    turns = fault.turns(voice)
    aside = next(scenario for scenario in SCENARIOS if scenario.asides).aside(family())
    engine = (
        FaultyEngine([*turns, *voice.rest()], aside, turns) if fault.noise else FaultyEngine([*turns, *voice.rest()])
    )

    def ready(proxy: FaultyProxy) -> None:
        for turn in turns:
            if isinstance(turn.gate, HangUp):
                turn.gate.proxy = proxy

    return await run_faulty(
        podman, voice.spec, folder, policy, engine, context=FULL[name] if fault.noise else 400_000,
        max_output=fault.max_output, refused=fault.refused, keepalive=60.0 if fault.impatient else 0.2, ready=ready,
    )  # fmt: skip


@dataclass(frozen=True)
class End:
    """How a trial ends. `lost`: of a fault of ours; what its reason says. It counts for nothing, and is tried again.

    calls: a regular expression of one letter a request: r refused, d delivered, a abandoned, s superseded.
    forks: the calls that do not continue the one before them whole, or how many there may be. cancelled: generations
    stopped before their end.
    """

    calls: str
    forks: int | tuple[int, ...] = 0
    ending: str = "exit"
    code: int | None = 0
    solved: bool = True
    cancelled: int = 0
    lost: str = ""


UNHEARD = "no reply reached the harness: it hung up on all its calls (1)"
FAULT = "1 replies were lost: engine: out of memory"
LOST = End("rddd", lost=FAULT)
CUT = End("addd", forks=1, lost=FAULT)
GONE = End("addd", forks=1, cancelled=1)
ENDS = {
    "claude-code": {
        "500": LOST,
        "429": End("ddd"),
        "overflow": End("d+r+d+", forks=1),
        "malformed call": End("ddddd"),
        "empty reply": End("dddd", forks=1),
        "length stop": End("dddd"),
        "length stop in a call": End("dddd"),
        "cut stream": CUT,
        "lost connection": GONE,
        "slow first token": End("dddd"),
        "duplicate in flight": End("rddd", cancelled=1),
    },
    "mini-swe-agent": {
        "500": LOST,
        "429": End("ddd"),
        "overflow": End("d+r", ending="context", code=1, solved=False),
        "malformed call": End("ssddd", forks=2),
        "empty reply": End("sddd", forks=1),
        "length stop": End("sddd", forks=1),
        "length stop in a call": End("sddd", forks=1),
        "cut stream": CUT,
        "lost connection": GONE,
        "slow first token": End("dddd"),
        "duplicate in flight": GONE,
    },
    "opencode": {
        "500": LOST,
        "429": End("ddd"),
        "overflow": End("d+", forks=2),
        "malformed call": End("ddddd"),
        "empty reply": End("d", solved=False),
        "length stop": End("d", solved=False),
        "length stop in a call": End("dddd"),
        # It keeps the beginning that it saw of a cut reply before the one that it then got.
        "cut stream": replace(CUT, calls="asdd", forks=2),
        # Whether the part that it heard is in its history when it asks again is a race within OpenCode.
        "lost connection": replace(GONE, calls="a[ds]dd", forks=(1, 2)),
        "slow first token": End("dddd"),
        # Its own time-out it takes for its end.
        "duplicate in flight": End("a", cancelled=1, lost=UNHEARD),
    },
    "openhands": {
        "500": LOST,
        "429": End("ddd"),
        "overflow": End("d+rd+", forks=2),
        "malformed call": End("ddddd"),
        "empty reply": End("dddd"),
        "length stop": End("d", solved=False),
        "length stop in a call": End("dddd"),
        "cut stream": CUT,
        "lost connection": GONE,
        "slow first token": End("dddd"),
        "duplicate in flight": GONE,
    },
    "qwen-code": {
        "500": LOST,
        "429": End("ddd"),
        "overflow": End("d+", forks=2),
        "malformed call": End("ddddd"),
        "empty reply": End("sddd", forks=1),
        "length stop": End("d", solved=False),
        "length stop in a call": End("dddd"),
        "cut stream": replace(CUT, calls="a", forks=0),
        "lost connection": End("a", cancelled=1, lost=UNHEARD),
        "slow first token": End("dddd"),
        "duplicate in flight": End("rddd", cancelled=1),
    },
    # It is asked whether it is sure, which is one more call.
    "terminus-2": {
        "500": replace(LOST, calls="rdddd"),
        "429": End("dddd"),
        "overflow": End("d+rd+", forks=2),
        "malformed call": End("dddddd"),
        "empty reply": End("ddddd"),
        "length stop": End("ddddd"),
        "length stop in a call": End("ddddd"),
        "cut stream": replace(CUT, calls="adddd"),
        "lost connection": replace(GONE, calls="adddd"),
        "slow first token": End("ddddd"),
        "duplicate in flight": replace(GONE, calls="adddd"),
    },
}


ALWAYS = {
    "claude-code": FAULTS.keys(),
    "mini-swe-agent": {"overflow", "malformed call", "length stop", "cut stream", "lost connection"},
}
"""What is tried without being asked for: a minute and a half."""


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name, ends in ENDS.items() for fault in ends])
async def test_a_fault_ends_as_it_should(
    name: str, fault: str, podman: Podman, tmp_path: Path, tiny_policy: Path
) -> None:
    if fault not in ALWAYS.get(name, ()):
        skip_unless_asked_for(name)
    end, ended = ENDS[name][fault], await faulty(name, FAULTS[fault], podman, tmp_path, tiny_policy)
    trial = ended.trial
    letters = "".join("r" if row["kind"] == "rejected" else row["fate"][0] for row in ended.rows)
    assert re.fullmatch(end.calls, letters), ended.said()
    captured = ended.captured
    assert (captured.roots, ended.cancelled) == (1, end.cancelled), ended.said()
    forks = end.forks if isinstance(end.forks, tuple) else (end.forks,)
    assert captured.forks in forks and captured.drifts == captured.forks, ended.said()
    if not end.lost:
        state = (trial["status"], trial["fault"], trial["reason"], trial["ending"], trial["exit_code"])
        assert state == ("finished", None, "", end.ending, end.code), ended.said()
        changed = json.loads(trial["submission_note"])["changed"]
        assert changed == ([FIXED] if end.solved else []), ended.said()
    else:
        assert (trial["status"], trial["fault"], trial["ending"]) == ("failed", "infra", "error"), ended.said()
        assert end.lost in trial["reason"]
    if fault == "slow first token":
        assert trial["waited"] >= SLOW, "the trial's clock stood still"
    if fault == "overflow" and end.forks:
        assert captured.spliced > 0, "the replies that it kept are our own ids"
    assert must_hold(captured, 0.0) == [], ended.said()
    for segment in ended.segments:
        assert np.array_equal(segment.logprobs[segment.mask], weigh(segment.ids)[segment.mask]), ended.said()


ASKS = """
import http.client, json, os, socket, sys
for last in sys.argv[1:]:
    line = socket.socket(socket.AF_UNIX)
    line.connect("/run/lego/proxy.sock")
    asks = http.client.HTTPConnection("lego")
    asks.sock = line
    body = json.dumps({"model": "policy", "stream": True, "messages": [{"role": "user", "content": last}]})
    asks.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer " + os.environ["LEGO_TOKEN"]})
    answer = asks.getresponse()
    answer.read(1 if last == "leaves" else None)
"""


@pytest.mark.parametrize(
    ("asked", "state"),
    [("leaves", ("failed", "infra", "error")), ("stays leaves", ("finished", None, "exit"))],
    ids=["at once", "after a reply"],
)
async def test_who_hangs_up_before_any_reply_was_not_the_agent(
    asked: str, state: tuple[str, str | None, str], podman: Podman, tmp_path: Path, tiny_policy: Path
) -> None:
    """An engine slower than a harness is patient is no failure of the policy; what came later may be."""
    run = {"argv": ["/usr/bin/env", "python3", "-c", ASKS, *asked.split()], "env": {"LEGO_TOKEN": "{token}"}}
    said_so = {"style": "tool", "tool": "bash", "submit": {"tool": "submit"}}
    path = tmp_path / "asks.yaml"
    path.write_text(json.dumps({"name": "asks", "dialect": "openai_chat", "run": run, "script": said_so}))
    spec = load_spec(path)
    await built(podman, spec, tmp_path)
    await built_task(podman, TASK, tmp_path)
    cut = Turn("", raw=said("I think on. " * 30).raw, pieces=9, gated=4, gate=asyncio.Event())
    engine = FaultyEngine([said("Hm.")] * asked.count("stays") + [cut])
    ended = await run_faulty(
        podman, spec, tmp_path, tiny_policy, engine, context=4000, max_output=2000, refused=0, keepalive=60.0
    )
    trial = ended.trial
    assert (trial["status"], trial["fault"], trial["ending"]) == state, ended.said()
    assert ended.rows[-1]["reason"] == "client_gone" and ended.cancelled == 1, ended.said()
    if trial["fault"]:
        assert UNHEARD in trial["reason"]
    assert must_hold(ended.captured, 0.0) == [], ended.said()
