from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lego.sandbox.layers import Entry
from lego.sandbox.patch import patch
from lego.sandbox.submission import Submission
from tests.conftest import missing

# Names that clash as folder and file are the submission's business, not the patch's.
names = st.binary(min_size=1, max_size=10).filter(lambda b: not set(b) & {0, 0x2F} and b not in (b".", b"..", b".git"))
texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\r\n", b"\xff\n", b"\r", b"end", b"", b"\\ No\n"]), max_size=12)
contents = st.one_of(texts.map(b"".join), st.binary(max_size=80), st.just(b"\0" * 300 + b"x" * 77))
files = st.tuples(st.sampled_from([0o644, 0o755]), contents)
links = st.tuples(st.just(None), st.binary(min_size=1, max_size=20).filter(lambda b: 0 not in b))
things = st.one_of(st.none(), files, files, links)


def _entry(path: str, thing: tuple[int | None, bytes], *, existed: bool = False) -> Entry:
    mode, data = thing
    return Entry(path, "link" if mode is None else "file", mode or 0o777, data, existed=existed)


def _put(folder: Path, name: bytes, thing: tuple[int | None, bytes] | None) -> None:
    if thing is None:
        return
    mode, data = thing
    at = os.fsencode(folder) + b"/app/" + name
    if mode is None:
        os.symlink(data, at)
        return
    with open(at, "wb") as file:
        file.write(data)
    os.chmod(at, mode)


def _tree(folder: Path) -> dict[bytes, tuple[int | None, bytes]]:
    found: dict[bytes, tuple[int | None, bytes]] = {}
    root = os.fsencode(folder) + b"/app"
    for name in os.listdir(root) if os.path.isdir(root) else ():
        at = os.path.join(root, name)
        if os.path.islink(at):
            found[name] = (None, os.readlink(at))
        else:
            with open(at, "rb") as file:
                found[name] = (0o755 if os.stat(at).st_mode & 0o100 else 0o644, file.read())
    return found


@settings(max_examples=40)
@given(st.dictionaries(names, st.tuples(things, things), min_size=1, max_size=4))
def test_git_makes_the_same_files_of_it(changed: dict[bytes, tuple[object, object]]) -> None:
    if shutil.which("git") is None:
        missing("git", "it applies the patch")
    folder = Path(subprocess.run(["mktemp", "-d"], capture_output=True, text=True, check=True).stdout.strip())
    try:
        (folder / "app").mkdir()
        entries, originals = [], []
        for name, (before, after) in changed.items():
            path = "/app/" + os.fsdecode(name)
            _put(folder, name, before)  # type: ignore[arg-type]
            if before is not None:
                originals.append(_entry(path, before))  # type: ignore[arg-type]
            if after is not None:
                entries.append(_entry(path, after, existed=before is not None))  # type: ignore[arg-type]
            elif before is not None:
                entries.append(Entry(path, "deleted", existed=True))
        text = patch(Submission(("/app",), tuple(entries), (), tuple(originals)))
        if text:
            done = subprocess.run(
                ["git", "-c", "core.autocrlf=false", "apply", "--unsafe-paths", "--whitespace=nowarn", "-"],
                cwd=folder, input=text, capture_output=True,
            )  # fmt: skip
            assert done.returncode == 0, (done.stderr, text)
        assert _tree(folder) == {name: after for name, (_, after) in changed.items() if after is not None}
    finally:
        shutil.rmtree(folder)


def test_what_is_shown_of_a_small_change() -> None:
    before, after = b"def f(a):\n    return a - 1\n", b"def f(a):\n    return a + 1\n"
    one = Submission(
        ("/app",),
        (Entry("/app/f.py", "file", 0o644, after, existed=True), Entry("/app/big", "file", 0o644, b"x", existed=True)),
        (),
        (Entry("/app/f.py", "file", 0o644, before),),
    )
    text = patch(one).decode()
    assert "diff --git a/app/f.py b/app/f.py\n" in text and "-    return a - 1\n+    return a + 1\n" in text
    assert "# /app/big replaces what is too large" in text
