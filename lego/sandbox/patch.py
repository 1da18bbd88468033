"""A submission as a patch that `git apply` takes: text as hunks, anything else as binary literals, bytes throughout.

Paths are relative to the root file system (`a/app/x.py`). What the pristine state had is known up to a size
(Submission.originals); a larger file that was changed or deleted is shown as a comment, since a patch without the old
content would not apply.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import os
import zlib

from lego.sandbox.layers import Entry
from lego.sandbox.submission import Submission

_LINE = 52
_CONTEXT = 3
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@=,:~ ")
_ESCAPES = {0x07: b"\\a", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v", 0x0C: b"\\f", 0x0D: b"\\r"}


def patch(submission: Submission) -> bytes:
    """The whole submission in git's format; empty where it changes nothing that git knows of (folders)."""
    originals = {entry.path: entry for entry in submission.originals}
    parts: list[bytes] = []
    for entry in sorted(submission.entries, key=lambda entry: os.fsencode(entry.path)):
        if entry.kind in ("file", "link"):
            before = originals.get(entry.path)
            if before is None and entry.existed:
                parts.append(b"# %s replaces what is too large to be kept\n" % _named(b"", entry.path))
            parts.append(_one(entry.path, before, entry))
        elif entry.kind == "deleted" and entry.path in originals:
            parts.append(_one(entry.path, originals[entry.path], None))
    return b"".join(parts)


def _one(path: str, before: Entry | None, after: Entry | None) -> bytes:
    if before is not None and after is not None and before.kind != after.kind:
        return _one(path, before, None) + _one(path, None, after)
    old_name, new_name = _named(b"a", path), _named(b"b", path)
    old = None if before is None else (_git_mode(before), before.data)
    new = None if after is None else (_git_mode(after), after.data)
    if old == new:
        return b""
    head = b"diff --git %s %s\n" % (old_name, new_name)
    if old is None and new is not None:
        head += b"new file mode %s\n" % new[0]
    elif new is None and old is not None:
        head += b"deleted file mode %s\n" % old[0]
    elif old is not None and new is not None and old[0] != new[0]:
        head += b"old mode %s\nnew mode %s\n" % (old[0], new[0])
    was, now = (b"" if side is None else side[1] for side in (old, new))
    if was == now:
        return head
    ids = (_blob(was) if old else b"0" * 40, _blob(now) if new else b"0" * 40)
    head += b"index %s..%s" % ids + (b" %s\n" % new[0] if old and new and old[0] == new[0] else b"\n")
    if b"\0" in was or b"\0" in now:
        return head + b"GIT binary patch\n" + _literal(now) + _literal(was)
    names = (b"/dev/null" if old is None else _tabbed(old_name), b"/dev/null" if new is None else _tabbed(new_name))
    return head + b"--- %s\n+++ %s\n" % names + hunks(was, now)


def hunks(was: bytes, now: bytes) -> bytes:
    """What turns the bytes of one file into others, as hunks without a header; line ends are kept as they are."""
    # latin-1 gives each byte its character, so that the lines of any bytes can be compared as text.
    old, new = (_lines(side) for side in (was, now))
    rows = difflib.unified_diff(old, new, n=_CONTEXT, lineterm="")
    out = []
    for row in list(rows)[2:]:
        data = row.encode("latin-1")
        out.append(data if data.endswith(b"\n") or data.startswith(b"@@") else data + b"\n\\ No newline at end of file")
        if not data.endswith(b"\n"):
            out.append(b"\n")
    return b"".join(out)


def _lines(data: bytes) -> list[str]:
    """Split at \\n alone, ends kept: a lone \\r is a character like any other to git."""
    parts = data.decode("latin-1").split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return lines + [parts[-1]] if parts[-1] else lines


def _literal(data: bytes) -> bytes:
    packed = zlib.compress(data)
    out = [b"literal %d\n" % len(data)]
    for at in range(0, len(packed), _LINE):
        piece = packed[at : at + _LINE]
        size = len(piece)
        length = bytes([size + 64 if size <= 26 else size + 70])
        out.append(length + base64.b85encode(piece, pad=True) + b"\n")
    return b"".join(out) + b"\n"


def _blob(data: bytes) -> bytes:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest().encode()


def _git_mode(entry: Entry) -> bytes:
    return b"120000" if entry.kind == "link" else b"100755" if entry.mode & 0o100 else b"100644"


def _named(side: bytes, path: str) -> bytes:
    name = side + os.fsencode(path)
    if all(byte in _PLAIN for byte in name):
        return name
    return b'"' + b"".join(_quoted(byte) for byte in name) + b'"'


def _quoted(byte: int) -> bytes:
    if byte in (0x22, 0x5C):
        return b"\\" + bytes([byte])
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def _tabbed(name: bytes) -> bytes:
    """git ends a name with a space in it by a tab, so that nothing after it is taken for a date."""
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name
