"""Calls that the harness did not make: the agent's own commands found the socket, or the port and the token.

Nothing inside the sandbox is a secret from the agent, so this looks at evidence. Whoever opened the session's socket is
named by the kernel, and where that is the forwarder of the harness's TCP port, whoever opened the connection to it is
named by the forwarder: a program that is not of the harness's runtime is refused. What neither knows the client's own
name may tell, which can be forged: a call by another client than the first, which came before the agent could act, is
answered, recorded with the evidence, kept out of the loss, and never continued by the harness's own calls.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from asyncio import BaseTransport
from contextlib import suppress

from lego.harness.forward import SAYS

_CREDENTIALS = struct.Struct("3i")
_NAME = re.compile(r"(?:async)?([^/\s]*)", re.IGNORECASE)


def programs_of(transport: BaseTransport | None) -> list[str]:
    """The paths of the programs at the other end of a unix socket, as their own sandbox names them, as far as they are
    known: the one that opened it, and the one behind it, if that is the forwarder."""
    connection = None if transport is None else transport.get_extra_info("socket")
    if connection is None or connection.family != socket.AF_UNIX:
        return []
    programs = []
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    with suppress(OSError):
        programs.append(os.readlink(f"/proc/{_CREDENTIALS.unpack(peer)[0]}/exe"))
    name = connection.getpeername()
    if isinstance(name, bytes) and name.startswith(SAYS):
        programs.append(os.fsdecode(name.removeprefix(SAYS).partition(b" ")[2]))
    return programs


def client_name(user_agent: str) -> str:
    """The client's name in a User-Agent, without its version: `claude-cli/2.1 (external)` is `claude-cli`. Python's
    clients say when they are asynchronous, which one program may be in one call and not in another."""
    match = _NAME.match(user_agent.strip())
    return match[1].lower() if match else ""
