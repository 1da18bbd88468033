"""Which call a request continues: the conversations of one trial as a tree of messages.

Walking a request down the tree touches each of its messages once and compares, never re-renders or re-tokenises,
them. A reply is recognised by what the proxy minted for it: its tool-call ids, all of them; without tool calls its
mark, where the echo brings one back, and else its normalised text. Tool names, arguments and reasoning never decide:
harnesses rename, re-serialise and drop them.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from lego.trajectory.messages import Message, Tool


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


def _message_key(message: Message) -> Hashable:
    calls = tuple((call.id, call.name, call.arguments) for call in message.tool_calls)
    return (message.role, message.content, calls, message.tool_call_id, message.name)


@dataclass
class _Node:
    """A conversation so far. `asked` are the calls whose request ends here, in seq order."""

    children: dict[Hashable, _Node] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    first_call: int | None = None


@dataclass(frozen=True)
class Walk:
    """Where a request leads.

    `call`: the last recognised reply all of whose conversation matched, or None; the request's messages after it
    begin at index `tail`. `near`: a call that shares the most leading messages (`at` of them), or None.
    `passed_over`: calls whose whole request the walk went through without taking their reply.
    """

    call: int | None
    tail: int
    near: int | None
    at: int
    passed_over: tuple[int, ...]


class History:
    """The message tree of one trial. Calls are known by their seq."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._tools: tuple[tuple[Tool, ...], Hashable] = ((), ())
        self._after: dict[int, _Node] = {}
        self._replies: dict[int, Message] = {}
        self._by_ids: dict[frozenset[str], int] = {}
        self._by_mark: dict[str, int] = {}
        self._by_text: dict[str, int] = {}

    def walk(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Walk:
        """Follow `messages` as far as they are known."""
        root = self._roots.get(self._tools_key(tools))
        if root is None:
            return Walk(None, 0, None, 0, ())
        # Retries can leave equal bare replies side by side, so several paths may fit; the deepest one counts.
        paths: list[tuple[_Node, int | None, int]] = [(root, None, 0)]
        best: tuple[int, int] = (0, -1)
        near, at = root.first_call, 0
        passed_over: list[int] = []
        for index in range(len(messages) + 1):
            message = messages[index] if index < len(messages) else None
            onward: list[tuple[_Node, int | None, int]] = []
            for node, call, tail in paths:
                near, at = node.first_call, index
                if call is not None:
                    best = max(best, (tail, call))
                for asked in node.asked:
                    if message is not None and same_reply(self._replies[asked], message):
                        onward.append((self._after[asked], asked, index + 1))
                    else:
                        passed_over.append(asked)
                child = node.children.get(_message_key(message)) if message is not None else None
                if child is not None:
                    onward.append((child, call, tail))
            paths = onward
            if not paths:
                break
        tail, call_id = best
        return Walk(call_id if call_id >= 0 else None, tail, near if at else None, at, tuple(passed_over))

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
        for message in messages[tail:]:
            known = [asked for asked in node.asked if same_reply(self._replies[asked], message)]
            node = self._after[known[-1]] if known else node.children.setdefault(_message_key(message), _Node())
            node.first_call = call if node.first_call is None else node.first_call
        node.asked.append(call)
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

    def _tools_key(self, tools: Sequence[Tool]) -> Hashable:
        """Made once for as long as the tools stay the same: they are most of many requests."""
        if tuple(tools) != self._tools[0]:
            key = tuple((t.name, t.description, json.dumps(t.parameters, sort_keys=True)) for t in tools)
            self._tools = (tuple(tools), key)
        return self._tools[1]
