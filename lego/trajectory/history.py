"""Which call a request continues: the conversations of one trial as a tree of messages.

Walking a request down the tree touches each of its messages once and compares, never re-renders or re-tokenises,
them. A reply is recognised by what the proxy minted for it: its tool-call ids, all of them; without tool calls its
mark, where the echo brings one back, and else its normalised text. Tool names, arguments and reasoning never decide:
harnesses rename, re-serialise and drop them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import is_

from lego.trajectory.messages import Message, Tool

_TRAILS = 8
"""Conversations whose walk is remembered: the main thread and some sub-agents."""
_EXPECTED = 8
"""What is looked at to say how a conversation differs from those before it."""


def normal_text(text: str) -> str:
    """A reply's text as it is compared: line ends unified, outer white space ignored."""
    return text.replace("\r\n", "\n").strip()


def reply_ids(message: Message) -> frozenset[str]:
    """The tool-call ids of a reply."""
    return frozenset(call.id for call in message.tool_calls)


def same_reply(reply: Message, echo: Message) -> bool:
    """Whether the harness's `echo` is the whole of the `reply` that was sent to it."""
    if echo.role != "assistant":
        return False
    if reply.tool_calls or echo.tool_calls:
        return len(reply.tool_calls) == len(echo.tool_calls) and reply_ids(reply) == reply_ids(echo)
    said, echoed = normal_text(reply.content), normal_text(echo.content)
    if reply.mark and echo.mark:
        # A mark may stand before the text: what a cut stream left of the text is not the whole reply.
        return reply.mark == echo.mark and (said == echoed or not said.startswith(echoed))
    return said == echoed


@dataclass(eq=False)
class _Node:
    """A conversation so far, `message` its last. `asked` are the calls whose request ends here, in seq order."""

    message: Message | None = None
    children: dict[Hashable, _Node] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    first_call: int | None = None


@dataclass
class _Trail:
    """Where the walk of `messages` went: all its `nodes`. Once their call has ended, the next walk goes on from `node`,
    the last of them; `call` and `tail` as in Walk. None is kept where the walk had several ways to go."""

    messages: Sequence[Message]
    tools: Hashable
    nodes: set[_Node]
    node: _Node
    call: int | None = None
    tail: int = 0

    def leads(self, messages: Sequence[Message], tools: Hashable) -> bool:
        """Whether `messages` begin with the very same objects."""
        n = len(self.messages)
        return n <= len(messages) and tools is self.tools and all(map(is_, self.messages, messages))


@dataclass(frozen=True)
class Walk:
    """Where a request leads.

    `call`: the last recognised reply all of whose conversation matched, or None; the request's messages after it
    begin at index `tail`. `near`: a call that shares the most leading messages (`at` of them), or None.
    `passed_over`: calls whose whole request the walk went through without taking their reply. `expected`: what known
    conversations have where this one parts from them, newest last; `other_tools`: its first message is known, but
    with another list of tools.
    """

    call: int | None
    tail: int
    near: int | None
    at: int
    passed_over: tuple[int, ...]
    expected: tuple[Message, ...] = ()
    other_tools: bool = False


class History:
    """The message tree of one trial. Calls are known by their seq."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._tools: list[tuple[tuple[Tool, ...], Hashable]] = []
        self._after: dict[int, _Node] = {}
        self._replies: dict[int, Message] = {}
        self._by_ids: dict[frozenset[str], int] = {}
        self._by_mark: dict[str, int] = {}
        self._by_text: dict[str, int] = {}
        self._walked: list[_Trail] = []
        self._ended: list[_Trail] = []

    def walk(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Walk:
        """Follow `messages` as far as they are known.

        A history that comes again as the same objects is not walked again: what it passed over was told before.
        """
        key = self._tools_key(tools)
        root = self._roots.get(key)
        if root is None:
            return self._unknown(messages, key)
        begin = next((trail for trail in reversed(self._ended) if trail.leads(messages, key)), None)
        begin = begin or _Trail((), key, set(), root)
        # Retries can leave equal bare replies side by side, so several paths may fit; the deepest one counts.
        paths: list[tuple[_Node, int | None, int]] = [(begin.node, begin.call, begin.tail)]
        best: tuple[int, int] = (0, -1)
        near, at = root.first_call, 0
        passed_over: list[int] = []
        several = False
        seen: list[_Node] = []
        for index in range(len(begin.messages), len(messages) + 1):
            message = messages[index] if index < len(messages) else None
            onward: list[tuple[_Node, int | None, int]] = []
            for node, call, tail in paths:
                near, at = node.first_call, index
                seen.append(node)
                if call is not None:
                    best = max(best, (tail, call))
                for asked in node.asked:
                    if message is not None and same_reply(self._replies[asked], message):
                        onward.append((self._after[asked], asked, index + 1))
                    else:
                        passed_over.append(asked)
                child = node.children.get(message.key) if message is not None else None
                if child is not None:
                    onward.append((child, call, tail))
            if not onward:
                break
            paths = onward
            several = several or len(paths) > 1
        if not at:
            return self._unknown(messages, key)
        if not several:
            self._keep_walked(_Trail(messages, key, begin.nodes.union(seen), paths[0][0]))
        tail, call_id = best
        expected = self._expected([node for node, _, _ in paths]) if at < len(messages) else ()
        return Walk(call_id if call_id >= 0 else None, tail, near, at, tuple(passed_over), expected)

    def add(
        self,
        call: int,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        reply: Message,
        after: int | None,
        tail: int,
    ) -> None:
        """Enter a finished call: its request `messages`, of which those before `tail` lead to the reply of call
        `after` (None: start from the top), and its `reply`."""
        if after is None:
            node = self._roots.setdefault(self._tools_key(tools), _Node())
            tail = 0
        else:
            node = self._after[after]
        node.first_call = call if node.first_call is None else node.first_call
        nodes = [node]
        for message in messages[tail:]:
            known = [asked for asked in node.asked if same_reply(self._replies[asked], message)]
            node = self._after[known[-1]] if known else node.children.setdefault(message.key, _Node(message))
            node.first_call = call if node.first_call is None else node.first_call
            nodes.append(node)
        node.asked.append(call)
        self._remember(messages, nodes, after, tail)
        self._after[call] = _Node(first_call=call)
        self._replies[call] = reply
        if reply.tool_calls:
            self._by_ids[reply_ids(reply)] = call
            return
        if reply.mark:
            self._by_mark[reply.mark] = call
        if normal_text(reply.content):
            self._by_text[normal_text(reply.content)] = call

    def find(self, echo: Message) -> int | None:
        """The call that sampled this assistant message, wherever in the trial it was; None if it is not ours."""
        if echo.role != "assistant":
            return None
        if echo.tool_calls:
            found = self._by_ids.get(reply_ids(echo))
            whole = found is not None and len(self._replies[found].tool_calls) == len(echo.tool_calls)
            return found if whole else None
        found = self._by_mark.get(echo.mark) if echo.mark else None
        if found is None:
            found = self._by_text.get(normal_text(echo.content))
        return found if found is not None and same_reply(self._replies[found], echo) else None

    def _remember(self, messages: Sequence[Message], nodes: list[_Node], after: int | None, tail: int) -> None:
        """A call has ended at the last of `nodes`: walks that come through here are to see it."""
        end = nodes[-1]
        self._ended = [trail for trail in self._ended if end not in trail.nodes]
        walked = next((trail for trail in reversed(self._walked) if trail.messages is messages), None)
        # Requests in flight that would have met this call, had they been walked now.
        self._walked = [
            trail
            for trail in self._walked
            if trail is not walked and end not in trail.nodes and trail.node not in nodes
        ]
        if walked is not None:
            trail = _Trail(messages, walked.tools, walked.nodes.union(nodes), end, after, tail)
            self._ended = [*self._ended[-_TRAILS + 1 :], trail]

    def _keep_walked(self, trail: _Trail) -> None:
        self._walked = [*self._walked[-_TRAILS + 1 :], trail]

    def _unknown(self, messages: Sequence[Message], tools: Hashable) -> Walk:
        """No conversation begins like this one."""
        self._keep_walked(_Trail(messages, tools, set(), _Node()))
        first = messages[0].key
        other_tools = any(first in root.children for root in self._roots.values())
        return Walk(None, 0, None, 0, (), self._expected(self._roots.values()), other_tools)

    def _expected(self, nodes: Iterable[_Node]) -> tuple[Message, ...]:
        replies: list[Message] = []
        others: list[Message] = []
        for node in nodes:
            replies += [self._replies[asked] for asked in node.asked[-_EXPECTED:]]
            newest = islice(reversed(node.children.values()), _EXPECTED)
            others += [child.message for child in newest if child.message is not None][::-1]
        return (*others, *replies)[-_EXPECTED:]

    def _tools_key(self, tools: Sequence[Tool]) -> Hashable:
        """Made once for tools that come again and again: they are most of many requests."""
        offered = tuple(tools)
        known = next((key for kept, key in reversed(self._tools) if kept == offered), None)
        if known is None:
            known = tuple((t.name, t.description, json.dumps(t.parameters, sort_keys=True)) for t in offered)
            self._tools = [*self._tools[-_TRAILS + 1 :], (offered, known)]
        return known
