"""The calls of one trial as a tree of token streams.

A call's prompt is the first `shared` ids of its parent's prompt and completion, then its own added ids. A request
that continues a call shares all of them; a fork shares fewer; a root shares none. Nothing is stored twice, and
nothing is ever re-tokenised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from lego.errors import TrajectoryError
from lego.trajectory.arrays import Fate, Finish, FloatArray, IntArray, Kind, Sampler, Stream, as_ids, common_prefix
from lego.trajectory.history import History
from lego.trajectory.messages import Message, Tool

_STREAMS = 8
"""Branches whose ids are kept in one piece: the main thread and some sub-agents."""


@dataclass(frozen=True)
class CallRow:
    """A call as it is stored: what it adds to its parent, and what became of it.

    added_prompt_ids, completion_ids: [n] int32. logprobs: [len(completion_ids)] float32, nats, under the sampling
    distribution; None where no policy sampled (`sampler == "script"`). `shared` counts ids of the parent's prompt
    and completion together.
    """

    seq: int
    parent_seq: int | None
    shared: int
    added_prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray | None
    finish: Finish
    fate: Fate
    kind: Kind
    sampler: Sampler
    policy_version: int


@dataclass
class Call:
    """A node of the tree. `id` is its seq: the number its request got when it arrived, from 1, unique in the trial.

    `start` = number of ids of the prompt that come from the parent (the same as `shared`); the prompt has
    `prompt_length` ids, prompt and completion together `length`. Only `fate` ever changes.
    """

    id: int
    parent_id: int | None
    shared: int
    added_prompt_ids: IntArray
    completion_ids: IntArray
    logprobs: FloatArray | None
    finish: Finish
    fate: Fate
    kind: Kind = "main"
    sampler: Sampler = "policy"
    policy_version: int = 0

    @property
    def seq(self) -> int:
        return self.id

    @property
    def prompt_length(self) -> int:
        return self.shared + len(self.added_prompt_ids)

    @property
    def length(self) -> int:
        return self.prompt_length + len(self.completion_ids)

    def row(self) -> CallRow:
        """This call as it is stored."""
        return CallRow(
            seq=self.id,
            parent_seq=self.parent_id,
            shared=self.shared,
            added_prompt_ids=self.added_prompt_ids,
            completion_ids=self.completion_ids,
            logprobs=self.logprobs,
            finish=self.finish,
            fate=self.fate,
            kind=self.kind,
            sampler=self.sampler,
            policy_version=self.policy_version,
        )


@dataclass(frozen=True)
class Continue:
    """The request is `call`'s messages, its whole reply, and `tail`, which is all that is new."""

    call: Call
    tail: tuple[Message, ...]
    superseded: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fork:
    """The request shares its first `at` messages with `call`'s conversation, but continues no reply of ours."""

    call: Call
    at: int
    superseded: tuple[int, ...] = ()
    expected: tuple[Message, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Root:
    """The request shares no message with any call: the first call, a sub-agent, a compaction, a title.

    `other_tools`: its first message is known, but with another list of tools.
    """

    superseded: tuple[int, ...] = ()
    expected: tuple[Message, ...] = field(default=(), compare=False)
    other_tools: bool = field(default=False, compare=False)


Place = Continue | Fork | Root
"""`superseded`: delivered replies, never continued, that this request deletes, rewrites or asks for again.
`expected`: what known conversations have in the place where this one parts from them, newest last."""


class CallTree:
    """The calls of one trial. Pure: no clock, no I/O. Not thread-safe."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._continued: set[int] = set()
        # The call whose own ids a call branches off from -> after how many shared ids -> its first own id -> calls.
        self._branches: dict[int | None, dict[int, dict[int, list[Call]]]] = {}
        self._streams: dict[int, Stream] = {}
        self._history = History()
        self._last_seq = 0

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        """The calls in seq order, so parents before children."""
        return iter([self._calls[seq] for seq in sorted(self._calls)])

    def __getitem__(self, seq: int) -> Call:
        return self._calls[seq]

    def __contains__(self, seq: int) -> bool:
        return seq in self._calls

    def reserve(self) -> int:
        """The next seq, from 1. A request takes one when it arrives, whether or not it becomes a call."""
        self._last_seq += 1
        return self._last_seq

    def place(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Place:
        """Where a request belongs, by its messages. Changes nothing.

        Costs one comparison a message. Raises TrajectoryError for an empty request.
        """
        if not messages:
            raise TrajectoryError("a request without messages")
        walk = self._history.walk(messages, tools)
        superseded = tuple(
            seq for seq in walk.passed_over if self._calls[seq].fate is Fate.DELIVERED and seq not in self._continued
        )
        if walk.call is not None:
            return Continue(self._calls[walk.call], tuple(messages[walk.tail :]), superseded)
        if walk.near is not None:
            return Fork(self._calls[walk.near], walk.at, superseded, walk.expected)
        return Root(superseded, walk.expected, walk.other_tools)

    def accept(self, place: Place) -> dict[int, Fate]:
        """A request stands at `place`: settle the fates that this shows, and say which have changed.

        The reply that it continues was kept, also where another request had passed it over before: of several
        identical sub-agents, each goes on from its own.
        """
        changed = dict.fromkeys(place.superseded, Fate.SUPERSEDED)
        if isinstance(place, Continue):
            self._continued.add(place.call.id)
            if place.call.fate is Fate.SUPERSEDED:
                changed[place.call.id] = Fate.DELIVERED
        for seq, fate in changed.items():
            self.settle(seq, fate)
        return changed

    def recognise(self, message: Message) -> Call | None:
        """The call that sampled this assistant message, anywhere in the trial; None if it is not ours."""
        found = self._history.find(message)
        return None if found is None else self._calls[found]

    def attach(self, prompt_ids: IntArray) -> tuple[Call | None, int]:
        """The call that shares the most leading ids with a freshly rendered prompt, and how many it shares.

        (None, 0) if none shares any. Of equals the first in seq order. Ids are shared only with identical context,
        so a shared sampled id is still exactly in the context it was sampled in. Calls that part from the prompt
        where they part from each other are not looked at, so the cost is that of the path.
        """
        best: tuple[Call | None, int] = (None, 0)
        open_branches: list[tuple[int | None, int]] = [(None, 0)]
        while open_branches:
            trunk, common = open_branches.pop()
            for shared, by_first in self._branches.get(trunk, {}).items():
                if shared > common or shared == len(prompt_ids):
                    continue
                for call in by_first.get(int(prompt_ids[shared]), ()):
                    at = shared + common_prefix(call.added_prompt_ids, prompt_ids[shared:])
                    if at == call.prompt_length:
                        at += common_prefix(call.completion_ids, prompt_ids[at:])
                    open_branches.append((call.id, at))
                    if best[0] is None or (at, -call.id) > (best[1], -best[0].id):
                        best = (call, at)
        return best

    def add(
        self,
        parent: Call | None,
        shared: int,
        added_prompt_ids: Sequence[int] | IntArray,
        completion_ids: Sequence[int] | IntArray,
        logprobs: Sequence[float] | FloatArray | None,
        finish: Finish,
        *,
        place: Place | None = None,
        messages: Sequence[Message] = (),
        tools: Sequence[Tool] = (),
        reply: Message | None = None,
        seq: int | None = None,
        fate: Fate = Fate.DELIVERED,
        kind: Kind = "main",
        sampler: Sampler = "policy",
        policy_version: int = 0,
        apart: bool = False,
    ) -> Call:
        """Enter a call that has ended. `prompt.Prompt.enter` says this in fewer words.

        `reply` is what the harness was sent, with the tool-call ids it was sent; without it (and `messages`) the
        call is never recognised in a later request. `seq`: one from `reserve`, or None for the next. `apart`: no later
        call is to have anything to do with it.
        Raises TrajectoryError if the parent has fewer than `shared` ids or the seq is taken.
        """
        call = Call(
            id=self.reserve() if seq is None else seq,
            parent_id=None if parent is None else parent.id,
            shared=shared,
            # A copy: a slice would keep the whole prompt it was cut from.
            added_prompt_ids=np.array(added_prompt_ids, dtype=np.int32),
            completion_ids=as_ids(completion_ids),
            logprobs=None if logprobs is None else np.asarray(logprobs, dtype=np.float32),
            finish=finish,
            fate=Fate(fate),
            kind=kind,
            sampler=sampler,
            policy_version=policy_version,
        )
        self._insert(call, apart=apart)
        self._carry_on(call, parent, added_prompt_ids)
        if reply is not None and messages and not apart:
            after, tail = (place.call.id, len(messages) - len(place.tail)) if isinstance(place, Continue) else (None, 0)
            self._history.add(call.id, messages, tools, reply, after, tail)
        return call

    def settle(self, call: Call | int, fate: Fate) -> None:
        """Change what became of a reply. An abandoned reply stays abandoned."""
        node = self._calls[call if isinstance(call, int) else call.id]
        if node.fate is not Fate.ABANDONED:
            node.fate = Fate(fate)

    def prompt_ids(self, call: Call) -> IntArray:
        """The call's whole prompt, [prompt_length] int32."""
        return np.concatenate([piece for _, piece in self._pieces(call, call.prompt_length)] or [as_ids([])])

    def full_ids(self, call: Call) -> IntArray:
        """The call's prompt and completion, [length] int32."""
        return np.concatenate([piece for _, piece in self._pieces(call, call.length)] or [as_ids([])])

    def extended(self, call: Call, added: Sequence[int] | IntArray) -> IntArray:
        """The call's prompt and completion and then `added` ids, [length + len(added)] int32, not to be written to.

        For the newest calls of the newest branches it costs only what is new.
        """
        stream = self._streams.get(call.id)
        ids = None if stream is None else stream.extend(call.length, added)
        if ids is None:
            stream = self._keep(call, Stream(self.full_ids(call)))
            ids = stream.extend(call.length, added)
        assert ids is not None
        return ids

    def path(self, call: Call) -> list[tuple[Call, int]]:
        """Root to `call`: each call that gives ids to this one's stream, with how many of its completion ids are
        in it (always its first ones)."""
        steps: list[tuple[Call, int]] = []
        limit = call.length
        node: Call | None = call
        while node is not None:
            if limit > node.shared or node is call:
                steps.append((node, max(0, limit - node.prompt_length)))
                limit = node.shared
            node = self._calls[node.parent_id] if node.parent_id is not None else None
        return steps[::-1]

    def _carry_on(self, call: Call, parent: Call | None, added: Sequence[int] | IntArray) -> None:
        """The stream that the call's prompt was cut from goes on with its completion."""
        stream = None if parent is None else self._streams.get(parent.id)
        if parent is None or stream is None or not isinstance(added, np.ndarray):
            return
        if call.shared == parent.length and stream.ends_with(added, call.prompt_length):
            del self._streams[parent.id]
            self._keep(call, stream).extend(call.prompt_length, call.completion_ids)

    def _keep(self, call: Call, stream: Stream) -> Stream:
        self._streams[call.id] = stream
        if len(self._streams) > _STREAMS:
            del self._streams[next(iter(self._streams))]
        return stream

    def _pieces(self, call: Call, limit: int) -> list[tuple[Call, IntArray]]:
        pieces: list[tuple[Call, IntArray]] = []
        node: Call | None = call
        while node is not None and limit > 0:
            if limit > node.shared:
                pieces.append((node, node.completion_ids[: max(0, limit - node.prompt_length)]))
                pieces.append((node, node.added_prompt_ids[: limit - node.shared]))
                limit = node.shared
            node = self._calls[node.parent_id] if node.parent_id is not None else None
        return pieces[::-1]

    def _insert(self, call: Call, apart: bool = False) -> None:
        if call.id in self._calls:
            raise TrajectoryError(f"call {call.id} is already in the tree")
        parent = None if call.parent_id is None else self._calls.get(call.parent_id)
        if call.parent_id is not None and (parent is None or parent.id >= call.id):
            raise TrajectoryError(f"call {call.id}: its parent {call.parent_id} is not a call before it")
        room = 0 if parent is None else parent.length
        if not 0 <= call.shared <= room:
            raise TrajectoryError(f"call {call.id}: shares {call.shared} ids, but its parent has {room}")
        self._calls[call.id] = call
        first = next((int(ids[0]) for ids in (call.added_prompt_ids, call.completion_ids) if len(ids)), None)
        if first is not None and not apart:
            trunk = parent
            while trunk is not None and call.shared <= trunk.shared:
                trunk = self._calls[trunk.parent_id] if trunk.parent_id is not None else None
            branches = self._branches.setdefault(None if trunk is None else trunk.id, {})
            branches.setdefault(call.shared, {}).setdefault(first, []).append(call)
        self._last_seq = max(self._last_seq, call.id)


def rebuild(rows: Iterable[CallRow]) -> CallTree:
    """The tree of a trial from its stored calls, in any order; it recognises no messages.

    Raises TrajectoryError where a row's parent is missing or too short.
    """
    tree = CallTree()
    for row in sorted(rows, key=lambda row: row.seq):
        tree._insert(
            Call(
                id=row.seq,
                parent_id=row.parent_seq,
                shared=row.shared,
                added_prompt_ids=as_ids(row.added_prompt_ids),
                completion_ids=as_ids(row.completion_ids),
                logprobs=None if row.logprobs is None else np.asarray(row.logprobs, dtype=np.float32),
                finish=row.finish,
                fate=Fate(row.fate),
                kind=row.kind,
                sampler=row.sampler,
                policy_version=row.policy_version,
            )
        )
    return tree
