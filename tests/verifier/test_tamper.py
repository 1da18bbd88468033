from __future__ import annotations

import pytest

from lego.sandbox.submission import Dropped, Submission
from lego.verifier.tamper import findings
from lego.verifier.verdict import Finding


@pytest.mark.parametrize(
    ("drop", "kind"),
    [
        (Dropped("/app/tests/test_a.py", "protected", "modified"), "protected path"),
        (Dropped("/app/tests/test_a.py", "protected", "deleted"), "protected path"),
        (Dropped("/app/tests/test_new.py", "protected", "added"), None),
        (Dropped("/app/conftest.py", "protected", "added"), "test hook"),
        (Dropped("/app/x/evil.pth", "protected", "added"), "test hook"),
        (Dropped("/app/x/sitecustomize.py", "protected", "added"), "test hook"),
        (Dropped("/app/sitecustomize/__init__.py", "protected", "added"), "test hook"),
        (Dropped("/app/usercustomize", "protected", "added"), "test hook"),
        (Dropped("/app/tests/sitecustomize.md", "protected", "added"), None),
        (Dropped("/logs/verifier/reward.txt", "reserved", "added"), "verifier's place"),
        (Dropped("/app/x.pyc", "cache", "added"), None),
        (Dropped("/app/.git", "vcs", "modified"), None),
    ],
)
def test_only_what_influences_grading_is_a_finding(drop: Dropped, kind: str | None) -> None:
    found = findings(Submission(("/app",), (), (drop,)))
    assert found == ((Finding(kind, drop.path, drop.how),) if kind else ())
