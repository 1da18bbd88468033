"""Calls that the harness did not make: the agent's own commands found the socket, or the port and the token.

Nothing inside the sandbox is a secret from the agent, so this looks at evidence, of two strengths. Whoever opened the
session's socket is named by the kernel: a program that is not of the harness's runtime is refused. Through the
harness's TCP port every connection is the forwarder's; there only the client's own name is left, which can be forged:
a call by another client than the first, which came before the agent could act, is answered, recorded with the
evidence, kept out of the loss, and never continued by the harness's own calls.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from asyncio import BaseTransport

_CREDENTIALS = struct.Struct("3i")
_NAME = re.compile(r"(?:async)?([^/\s]*)", re.IGNORECASE)


def program_of(transport: BaseTransport | None) -> str | None:
    """The path of the program at the other end of a unix socket, as its own sandbox names it; None if unknown."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return None
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    try:
        return os.readlink(f"/proc/{_CREDENTIALS.unpack(peer)[0]}/exe")
    except OSError:
        return None


def client_name(user_agent: str) -> str:
    """The client's name in a User-Agent, without its version: `claude-cli/2.1 (external)` is `claude-cli`. Python's
    clients say when they are asynchronous, which one program may be in one call and not in another."""
    match = _NAME.match(user_agent.strip())
    return match[1].lower() if match else ""
