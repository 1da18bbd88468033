"""Evidence, in what a submission had to leave behind, that a trial tried to influence its own grading."""

from __future__ import annotations

from pathlib import PurePosixPath

from lego.sandbox.submission import Dropped, Submission
from lego.verifier.verdict import Finding

_HOOKS = frozenset(("conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini", ".pytest.ini", "tox.ini"))


def findings(submission: Submission) -> tuple[Finding, ...]:
    """What of the dropped changes speaks of tampering, by path.

    A new test file is ordinary work and is only dropped. Changing or deleting what decides, adding a hook that runs
    before the tests, or leaving something in the verifier's own places is not.
    """
    found = []
    for dropped in submission.dropped:
        kind = _kind(dropped)
        if kind:
            found.append(Finding(kind, dropped.path, dropped.how))
    return tuple(found)


def _kind(dropped: Dropped) -> str | None:
    if dropped.reason == "reserved":
        return "verifier's place"
    if dropped.reason != "protected":
        return None
    path = PurePosixPath(dropped.path)
    if path.name in _HOOKS or path.suffix == ".pth":
        return "test hook"
    return None if dropped.how == "added" else "protected path"
