"""The neutral conversation: what every dialect is translated to, and rendered from."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True)
class ToolCall:
    """A call the assistant made. `arguments` is the JSON text as the harness sees it (it may be malformed)."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Tool:
    """A tool on offer; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One message. `reasoning` is thinking, kept apart from `content`; `tool_call_id` answers a ToolCall.id.

    `mark` is the name the proxy minted for a reply, as far as an echo brings it back (in a thinking signature, in an
    item's id); it is never rendered.
    """

    role: Role
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    mark: str | None = None

    @cached_property
    def key(self) -> Hashable:
        """All by which two messages that are no replies of ours are the same."""
        calls = tuple((call.id, call.name, call.arguments) for call in self.tool_calls)
        return (self.role, self.content, calls, self.tool_call_id, self.name)
