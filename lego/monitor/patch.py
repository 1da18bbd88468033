"""What a trial left, as lines: a diff where the original is known, else the files as they are now. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from lego.errors import SandboxError
from lego.monitor.lines import Line, Look
from lego.plain import neutral
from lego.sandbox.rootfs import Entry
from lego.sandbox.submission import Submission

_MOST = 200_000
"""Bytes of a file beyond which it is only named: a diff of more would hold the screen up."""


def patch_lines(stored: bytes, originals: Mapping[str, bytes]) -> list[Line]:
    """stored: the submission's bytes. originals: absolute path -> content, of the files that are known."""
    try:
        submission = Submission.from_bytes(stored)
    except SandboxError as error:
        return [Line(str(error), "bad")]
    out: list[Line] = []
    for entry in submission.entries:
        if entry.kind != "dir":
            out += _entry(entry, originals)
    if not out:
        out.append(Line("nothing was changed", "soft"))
    out += [Line(neutral(f"left out: {drop.path} ({drop.how}; {drop.reason})"), "warn") for drop in submission.dropped]
    return out


def _entry(entry: Entry, originals: Mapping[str, bytes]) -> list[Line]:
    original = originals.get(entry.path)
    path = neutral(entry.path)
    if entry.kind == "deleted":
        return [Line(f"deleted   {path}", "bad"), *(_diff(original, b"") if original else [])]
    # A task's own files are laid over its image, so that only with them known is a file known to be new.
    how = "changed" if entry.existed or original is not None else "added" if originals else "written"
    title = f"{how:<9} {path}"
    if entry.kind != "file":
        return [Line(f"{title} ({entry.kind} to {neutral(entry.data.decode(errors='replace'))})", "title")]
    if b"\0" in entry.data or len(entry.data) > _MOST:
        return [Line(f"{title} ({len(entry.data)} bytes, not shown)", "title")]
    if original is not None or how == "added":
        return [Line(title, "title"), *_diff(original or b"", entry.data)]
    whole = [Line(neutral(row), margin="  ") for row in entry.data.decode(errors="replace").splitlines()]
    return [Line(f"{title} (whole: its original is not known here)", "title"), *whole]


def _diff(before: bytes, after: bytes) -> list[Line]:
    rows = difflib.unified_diff(
        before.decode(errors="replace").splitlines(), after.decode(errors="replace").splitlines(), lineterm="", n=3
    )
    looks: dict[str, Look] = {"+": "good", "-": "bad", "@": "soft"}
    return [Line(neutral(row), looks.get(row[:1], ""), "  ") for row in list(rows)[2:]]
