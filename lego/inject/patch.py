"""Unified diffs of one file's bytes, as `git apply` reads them."""

from __future__ import annotations

import difflib


def unified(path: str, before: bytes, after: bytes) -> bytes:
    """The patch that turns `before` into `after`; empty where they are equal. Line ends are kept as they are."""
    if before == after:
        return b""
    old, new = (_lines(data) for data in (before, after))
    names = (f"a/{path}", f"b/{path}")
    out = [f"diff --git {names[0]} {names[1]}\n".encode()]
    for line in difflib.unified_diff(old, new, *names):
        data = line.encode("latin-1") if line[:3] not in ("---", "+++") else line.encode()
        out.append(data if data.endswith(b"\n") else data + b"\n\\ No newline at end of file\n")
    return b"".join(out)


def _lines(data: bytes) -> list[str]:
    """A character a byte, so that any encoding passes; only a newline ends a line, as it does for git."""
    parts = data.decode("latin-1").split("\n")
    return [part + "\n" for part in parts[:-1]] + ([parts[-1]] if parts[-1] else [])
