"""How much of a task's own solution a submission holds word for word.

A one-line fix is the same whoever finds it. Many lines alike, down to their comments, were not found but retrieved.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

from lego.sandbox.submission import Submission
from lego.verifier.verdict import Finding

_TELLING = 12
"""Characters from which a line says something of who wrote it, and lines from which likeness is no accident."""
_MOST = 400
_BOUND = 0.95


def marks(submission: Submission) -> list[str]:
    """Marks of the lines that a submission adds to the pristine files: eight hex digits each, sorted, all different,
    short lines left out."""
    originals = {entry.path: entry.data for entry in submission.originals}
    found: set[str] = set()
    for entry in submission.entries:
        if entry.kind == "file" and b"\0" not in entry.data[:4096]:
            old = Counter(line.strip() for line in originals.get(entry.path, b"").splitlines())
            new = Counter(line.strip() for line in entry.data.splitlines())
            fresh = (line for line in new - old if len(line) >= _TELLING)
            found.update(hashlib.sha256(line).hexdigest()[:8] for line in fresh)
    return sorted(found)[:_MOST]


def alike(submission: Submission, gold: Sequence[str]) -> tuple[Finding, ...]:
    """A finding where at least 95 % of the solution's lines (its `marks`), 12 or more, are in the submission."""
    if len(gold) < _TELLING:
        return ()
    shared = len(set(gold) & set(marks(submission)))
    if shared < _BOUND * len(gold):
        return ()
    return (Finding("the solution word for word", "", f"{shared} of the {len(gold)} lines that the solution adds"),)
