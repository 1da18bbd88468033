"""From a request to the ids the policy sees, and from a finished generation to a call of the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from lego.trajectory.arrays import Fate, Finish, FloatArray, IntArray, Kind, Sampler, as_ids
from lego.trajectory.messages import Message, Tool
from lego.trajectory.render import Rendering
from lego.trajectory.tree import Call, CallTree, Continue, Place

HistoryPolicy = Literal["raw", "template"]


@dataclass(frozen=True)
class Prompt:
    """A request, placed and rendered.

    ids: [n] int32, the whole prompt. The first `shared` of them are the parent's. `how`: continued (shares all of
    the parent's prompt and completion), forked (shares less) or root. `spliced`: replies recognised in a history
    that was rendered afresh and put in by their raw ids; `rerendered`: recognised, but rendered from text.
    `fates`: the calls whose fate this request has changed.
    """

    ids: IntArray
    parent: Call | None
    shared: int
    how: Literal["continued", "forked", "root"]
    place: Place
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    spliced: int = 0
    rerendered: int = 0
    fates: Mapping[int, Fate] = field(default_factory=dict)

    @property
    def added_ids(self) -> IntArray:
        """What this prompt adds to its parent, [n - shared] int32."""
        return self.ids[self.shared :]

    def enter(
        self,
        tree: CallTree,
        completion_ids: Sequence[int] | IntArray,
        logprobs: Sequence[float] | FloatArray | None,
        finish: Finish,
        reply: Message,
        *,
        seq: int | None = None,
        fate: Fate = Fate.DELIVERED,
        kind: Kind = "main",
        sampler: Sampler = "policy",
        policy_version: int = 0,
        apart: bool = False,
    ) -> Call:
        """Enter the finished call into `tree`. `reply` is what the harness was sent, minted tool-call ids and all."""
        return tree.add(
            self.parent,
            self.shared,
            self.added_ids,
            completion_ids,
            logprobs,
            finish,
            place=self.place,
            messages=self.messages,
            tools=self.tools,
            reply=reply,
            seq=seq,
            fate=fate,
            kind=kind,
            sampler=sampler,
            policy_version=policy_version,
            apart=apart,
        )


def compose(
    tree: CallTree,
    rendering: Rendering,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    history: HistoryPolicy = "raw",
) -> Prompt:
    """Place a request in the tree and build its prompt; settle the fates that it shows.

    Raises RenderError where the family cannot express the messages; nothing is settled then.
    """
    prompt = preview(tree, rendering, messages, tools, history)
    return replace(prompt, fates=tree.accept(prompt.place))


def preview(
    tree: CallTree,
    rendering: Rendering,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    history: HistoryPolicy = "raw",
) -> Prompt:
    """The prompt that a request would get. Changes nothing.

    `raw`: a continued call keeps every sampled id of its parent and only new messages are rendered; where that
    cannot be proven the history is rendered afresh with recognised replies spliced in by their raw ids.
    `template`: what a stock server would render, always afresh, and attached where it shares ids.
    Raises RenderError where the family cannot express the messages.
    """
    messages = tuple(messages)
    place = tree.place(messages, tools)
    request = (place, messages, tuple(tools))
    if history == "raw" and isinstance(place, Continue):
        call = place.call
        parent_ids = tree.extended(call, ())
        new = rendering.named(messages)[len(messages) - len(place.tail) :]
        added = rendering.extend(parent_ids[: call.prompt_length], call.completion_ids, new, tools)
        if added is not None:
            return Prompt(tree.extended(call, added), call, call.length, "continued", *request)
    recognised = {i: tree.recognise(message) for i, message in enumerate(messages)}
    known = {i: call.completion_ids for i, call in recognised.items() if call is not None}
    raw = known if history == "raw" else {}
    rendered, spliced = rendering.render_spliced(messages, tools, raw)
    ids = as_ids(rendered)
    parent, shared = tree.attach(ids)
    how: Literal["continued", "forked", "root"] = "root"
    if parent is not None:
        how = "continued" if shared == parent.length else "forked"
    return Prompt(ids, parent, shared, how, *request, spliced, len(known) - spliced)
