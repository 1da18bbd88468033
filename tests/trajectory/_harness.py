"""A harness drawn at random: one that continues, deletes, rewrites, retries, compacts and fans out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import numpy as np
from hypothesis import strategies as st

from lego.trajectory.arrays import Fate, Finish, FloatArray, IntArray, Kind, Sampler, as_ids
from lego.trajectory.history import normal_text
from lego.trajectory.messages import Message
from lego.trajectory.prompt import HistoryPolicy, Prompt, compose
from lego.trajectory.tree import Call, CallTree, Continue
from tests.trajectory._support import TOOLS, mark, rendering, tokenizer

TEXTS = ("so", " \n", "ok", "x = 1\n", "\u4f60\U0001f600")
CALLS = ('{"name": "bash", "arguments": {"command":  "ls"}}', "bash\nls -la", "submit", "edit\na.py")


@dataclass
class Record:
    """What a call was in truth: the ids the engine saw and sampled."""

    prompt: IntArray
    completion: IntArray
    logprobs: FloatArray | None


@dataclass
class RandomHarness:
    """Drives a tree and keeps its own books, by which the tree is judged."""

    data: st.DataObject
    family: str
    history: HistoryPolicy
    tree: CallTree = field(default_factory=CallTree)
    truth: dict[int, Record] = field(default_factory=dict)
    minted: int = 0

    def ask(self, messages: list[Message]) -> Prompt:
        """A history of the same objects leads where one of equal objects does, which is walked from its start."""
        place = self.tree.place(messages, TOOLS)
        assert place == self.tree.place([replace(message) for message in messages], TOOLS)
        return compose(self.tree, rendering(self.family), messages, TOOLS, self.history)

    def answer(self, prompt: Prompt) -> tuple[Call, Message]:
        """Sample at random, parse, mint ids, enter."""
        ids, finish = self._sample()
        abandoned = finish == "abort"
        sampler: Sampler = self.data.draw(st.sampled_from(["policy"] * 5 + ["script"]))
        kind: Kind = self.data.draw(st.sampled_from(["main"] * 5 + ["subagent", "auxiliary"]))
        rng = np.random.default_rng(len(self.truth))
        logprobs = None if sampler == "script" else -rng.random(len(ids), dtype=np.float32)
        reply = rendering(self.family).parse(ids, TOOLS).message
        calls = tuple(replace(call, id=f"call_{self.minted + i}") for i, call in enumerate(reply.tool_calls))
        self.minted += len(calls)
        mark = self.data.draw(st.sampled_from([None, f"mark{len(self.truth)}"]))
        reply = replace(reply, tool_calls=calls, mark=mark)
        call = prompt.enter(
            self.tree,
            ids,
            logprobs,
            finish,
            reply,
            fate=Fate.ABANDONED if abandoned else Fate.DELIVERED,
            kind=kind,
            sampler=sampler,
        )
        self.truth[call.id] = Record(prompt.ids, as_ids(ids), logprobs)
        return call, reply

    def echo(self, reply: Message) -> Message:
        """The reply as a harness returns it: re-serialised, renamed, thinking dropped; still the same reply.

        Where its mark comes back its text does not count, unless it is cut.
        """
        if reply.mark and self.data.draw(st.booleans()):
            return replace(reply, content="changed" + reply.content)
        reply = replace(reply, mark=None)
        calls = tuple(
            replace(call, name=call.name + "2", arguments=self._reserialised(call.arguments))
            for call in reply.tool_calls
        )
        if self.data.draw(st.booleans()):
            return replace(reply, reasoning=None, tool_calls=calls, content=reply.content if not calls else "")
        return replace(reply, content=reply.content + "\r\n")

    def rewrite(self, reply: Message) -> Message:
        """Not the same reply: another text, or only some of its calls."""
        if reply.tool_calls:
            return replace(reply, tool_calls=reply.tool_calls[1:], content="changed" + reply.content)
        said = normal_text(reply.content)
        if reply.mark and len(said) > 1 and self.data.draw(st.booleans()):
            return replace(reply, content=said[:-1])
        return replace(reply, content="changed" + reply.content, mark=None)

    def results(self, reply: Message) -> list[Message]:
        text = f"r{self.data.draw(st.integers(0, 2))}"
        if reply.tool_calls:
            return [Message("tool", text, tool_call_id=call.id) for call in reply.tool_calls]
        return [Message("user", text)]

    def fan_out(self) -> None:
        """Sub-agents at once, some with the same first messages, their requests in flight together and ending in any
        order. Each goes on from its own reply."""
        draw = self.data.draw
        agents = [self._agent(draw(st.sampled_from("aab"))) for _ in range(draw(st.integers(2, 3)))]
        in_flight: dict[int, Prompt] = {}
        heard: dict[int, Call] = {}
        kept: list[Call] = []
        for _ in range(draw(st.integers(2, 9))):
            number = draw(st.integers(0, len(agents) - 1))
            prompt = in_flight.pop(number, None)
            if prompt is None:
                in_flight[number] = self.ask(agents[number])
                kept += [heard.pop(number)] if number in heard else []
                continue
            call, reply = self.answer(prompt)
            if call.fate is not Fate.ABANDONED and reply.tool_calls:
                agents[number] = [*agents[number], self.echo(reply), *self.results(reply)]
                heard[number] = call
        for prompt in in_flight.values():
            self.answer(prompt)
        assert all(call.fate is Fate.DELIVERED for call in kept)

    def _agent(self, name: str) -> list[Message]:
        return [Message("system", f"sub {name}"), Message("user", "u")]

    def _sample(self) -> tuple[list[int], Finish]:
        pieces: list[int] = []
        for _ in range(self.data.draw(st.integers(0, 3))):
            kind = self.data.draw(st.sampled_from(["text", "call", "think"]))
            if kind == "text":
                pieces += tokenizer().encode(self.data.draw(st.sampled_from(TEXTS)))
            elif kind == "call":
                text = self.data.draw(st.sampled_from(CALLS))
                pieces += [mark("<tool_call>"), *tokenizer().encode(text), mark("</tool_call>")]
            else:
                pieces += [mark("<think>"), *tokenizer().encode("hm"), mark("</think>")]
        finish: Finish = self.data.draw(st.sampled_from(["stop", "stop", "stop", "stop", "length", "abort"]))
        if finish == "stop":
            return [*pieces, mark("<|im_end|>")], finish
        return pieces[: self.data.draw(st.integers(0, len(pieces)))], finish

    def _reserialised(self, arguments: str) -> str:
        try:
            return json.dumps(json.loads(arguments), indent=1, ensure_ascii=True)
        except ValueError:
            return "{}"


def run(harness: RandomHarness, steps: int) -> None:
    """A random trial of about `steps` calls, judged as it goes."""
    draw = harness.data.draw
    history = [Message("system", "s"), Message("user", "u")]
    for _ in range(steps):
        prompt = harness.ask(history)
        if draw(st.integers(0, 5)) == 0:
            side = harness.ask(draw(st.sampled_from([history, [Message("system", "sub"), Message("user", "u")]])))
            harness.answer(side)
        call, reply = harness.answer(prompt)
        actions = ["on", "on", "on", "on", "retry", "delete", "rewrite", "compact", "root", "fan out"]
        action = draw(st.sampled_from(actions))
        if call.fate is Fate.ABANDONED and action in ("on", "compact"):
            action = "retry"
        if action == "on":
            echo = harness.echo(reply)
            history = [*history, echo, *harness.results(reply)]
            known = harness.tree.place(history, TOOLS)
            assert isinstance(known, Continue)
            assert known.call is call or not (echo.mark or echo.tool_calls)
            again = harness.ask(history)
            if harness.history == "raw":
                assert again.how == "continued" and again.parent is not None
                parent = harness.truth[again.parent.id]
                whole = np.concatenate([parent.prompt, parent.completion])
                assert np.array_equal(again.ids[: len(whole)], whole)
        elif action == "delete":
            history = [*history, Message("user", "format error")]
        elif action == "rewrite":
            history = [*history, harness.rewrite(reply), *harness.results(reply)]
        elif action == "compact":
            keep = draw(st.integers(0, 3))
            history = [
                Message("system", "s"),
                Message("user", "summary"),
                *([harness.echo(reply)] if keep else []),
                Message("user", "go on"),
            ]
        elif action == "fan out":
            harness.fan_out()
        elif action == "root":
            history = [Message("system", draw(st.sampled_from(["a", "b"]))), Message("user", "u")]
