"""Whose fault a failed build is: the network's, the machine's, or the recipe's own."""

from __future__ import annotations

import re

# As resolvers, apt, pip, npm, git, curl, proxies and podman word it. Said near the end of a failed command's output it
# means that the same command may well pass a moment later.
_NETWORK = re.compile(
    rb"temporary failure (?:resolving|in name resolution)|could(?: not|n't) resolve (?:host|proxy)|EAI_AGAIN"
    rb"|connection (?:timed out|reset|refused)|ETIMEDOUT|ECONNRESET|ECONNREFUSED|network is unreachable|i/o timeout"
    rb"|tls handshake timeout|read timed out|readtimeouterror|newconnectionerror|hash sum mismatch"
    rb"|(?:cannot|unable to) connect to proxy|proxyerror|tunnel connection failed"
    rb"|too ?many ?requests|(?:HTTP[ /\d.]*|\berror:? |status(?: code)?:? )(?:429|50[234])\b|bad gateway"
    rb"|service unavailable|gateway time-?out|remote end hung up unexpectedly|unexpected eof",
    re.IGNORECASE,
)
_FULL = re.compile(rb"no space left on device|disk quota exceeded", re.IGNORECASE)
# podman's own words, in a line of its own, about what it keeps: no instruction of a Dockerfile can cause them.
_STORE = re.compile(
    rb"^(?:Error: |time=).*(?:creating (?:read-write layer|container storage)|(?:image|layer) not known"
    rb"|may be corrupted|consider removing the image|input/output error|structure needs cleaning)",
    re.MULTILINE,
)
# Where podman repeats an instruction, the words are the Dockerfile's.
_REPEATED = re.compile(rb'^(?:STEP \d+/\d+: .*|(Error: building) at STEP ".*")', re.MULTILINE)


def machine_fault(said: bytes, code: int | None) -> str:
    """What of network or machine broke a build that ended with `code` (negative: by that signal; None where podman was
    asked otherwise), in words; "" where its own recipe did. `said`: the end of its output."""
    if code is not None and code < 0:
        return f"podman was killed (signal {-code})"
    said = _REPEATED.sub(rb"\1", said)
    if _FULL.search(said):
        return "the disk is full"
    if damaged(said):
        return "the image store is damaged"
    return "the network failed" if _NETWORK.search(said) else ""


def damaged(said: bytes) -> bool:
    """Whether podman speaks of an image or a layer in its store that is not as it was put there."""
    return _STORE.search(_REPEATED.sub(rb"\1", said)) is not None
