"""Unified diffs of one file's bytes, as `git apply` reads them."""

from __future__ import annotations

from lego.sandbox.patch import hunks


def unified(path: str, before: bytes, after: bytes) -> bytes:
    """The patch that turns `before` into `after`; empty where they are equal."""
    if before == after:
        return b""
    name = path.encode()
    return b"diff --git a/%b b/%b\n--- a/%b\n+++ b/%b\n" % (name, name, name, name) + hunks(before, after)
