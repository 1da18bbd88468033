"""Patches of any bytes, as git reads them."""

from __future__ import annotations

import subprocess

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lego.inject.patch import unified

line = st.binary(min_size=0, max_size=6).map(lambda one: b"x" + one.replace(b"\n", b"").replace(b"\0", b"."))
content = st.tuples(st.lists(line, min_size=1, max_size=8), st.booleans()).map(
    lambda made: b"\n".join(made[0]) + (b"\n" if made[1] else b"")
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=content, after=content)
def test_git_applies_it(before, after, tmp_path):
    (tmp_path / "m.py").write_bytes(before)
    patch = unified("m.py", before, after)
    assert bool(patch) == (before != after)
    if patch:
        subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=patch, cwd=tmp_path, check=True)
    assert (tmp_path / "m.py").read_bytes() == after
