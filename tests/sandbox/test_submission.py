from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.errors import SandboxError
from lego.sandbox import container
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Dropped, Submission, collect
from lego.tasks.task import File
from tests.sandbox.running import SMALL, submit

names = st.binary(min_size=1, max_size=12).filter(lambda b: b"/" not in b and b"\0" not in b)
paths = st.lists(names, min_size=1, max_size=3).map(lambda parts: "/app/" + os.fsdecode(b"/".join(parts)))
entries = st.builds(
    Entry,
    paths,
    st.sampled_from(["file", "link", "dir", "deleted"]),
    st.integers(0, 0o7777),
    st.binary(max_size=50),
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.booleans(),
)
drops = st.builds(Dropped, paths, st.sampled_from(["protected", "vcs"]), st.sampled_from(["added", "deleted"]))


@given(st.lists(entries, max_size=5).map(tuple), st.lists(drops, max_size=3).map(tuple))
def test_bytes_hold_everything_and_are_stable(entries: tuple[Entry, ...], drops: tuple[Dropped, ...]) -> None:
    submission = Submission(("/app",), entries, drops)
    read = Submission.from_bytes(submission.to_bytes())
    assert (read, read.digest, read.to_bytes()) == (submission, submission.digest, submission.to_bytes())


@given(st.binary(max_size=100))
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(SandboxError, match="stored submission"):
        Submission.from_bytes(data)


def _kept(submission: Submission) -> dict[str, tuple[str, int, bytes]]:
    return {entry.path: (entry.kind, entry.mode, entry.data) for entry in submission.entries}


def _dropped(submission: Submission) -> dict[str, tuple[str, str]]:
    return {drop.path: (drop.reason, drop.how) for drop in submission.dropped}


@pytest.mark.podman
async def test_nothing_done_is_empty(podman: Podman, busybox: str) -> None:
    workspace = {"/app/deep/laid.txt": File(b"laid"), "/app/kept.txt": File(b"laid over")}
    submission = await submit(podman, busybox, "cat deep/laid.txt; touch kept.txt", workspace=workspace)
    assert submission.empty and not submission.dropped


@pytest.mark.podman
async def test_every_kind_of_change_leaves_as_bytes(podman: Podman, busybox: str) -> None:
    line = r"""
    printf 'new\377\r\n' > new.bin; echo more >> kept.txt; chmod 755 old.txt; ln -s kept.txt link; rm -r pkg
    mkdir -p empty/dir; printf x > "$(printf 'odd\n\377 name')"; mkdir other; echo moved > other/f; rm laid; mkfifo pipe
    """
    submission = await submit(podman, busybox, line, workspace={"/app/laid": File(b"")})
    odd = os.fsdecode(b"/app/odd\n\xff name")
    assert _kept(submission) == {
        "/app/new.bin": ("file", 0o644, b"new\xff\r\n"),
        "/app/kept.txt": ("file", 0o644, b"kept\nmore\n"),
        "/app/old.txt": ("file", 0o755, b"old\n"),
        "/app/link": ("link", 0o777, b"kept.txt"),
        "/app/pkg/a.py": ("deleted", 0o644, b""),
        "/app/pkg/b.py": ("deleted", 0o644, b""),
        "/app/pkg": ("deleted", 0o644, b""),
        "/app/empty": ("dir", 0o755, b""),
        "/app/empty/dir": ("dir", 0o755, b""),
        odd: ("file", 0o644, b"x"),
        "/app/other": ("dir", 0o755, b""),
        "/app/other/f": ("file", 0o644, b"moved\n"),
        "/app/laid": ("deleted", 0o644, b""),
    }
    assert _dropped(submission) == {"/app/pipe": ("special", "added"), "/app/pkg/conftest.py": ("protected", "deleted")}


@pytest.mark.podman
async def test_a_moved_folder_leaves_whole(podman: Podman, busybox: str) -> None:
    submission = await submit(podman, busybox, "mv pkg renamed")
    kept = _kept(submission)
    assert kept["/app/renamed/a.py"][2] == b"a = 1\n" and kept["/app/renamed/b.py"][2] == b"b = 1\n"
    assert kept["/app/pkg/a.py"][0] == "deleted"
    assert _dropped(submission)["/app/renamed/conftest.py"] == ("protected", "added")


@pytest.mark.podman
async def test_a_folder_made_anew_has_lost_what_it_held(podman: Podman, busybox: str) -> None:
    submission = await submit(podman, busybox, "rm -r pkg; mkdir pkg; echo z > pkg/z.py; echo a = 1 > pkg/a.py")
    assert {path: kind for path, (kind, _, _) in _kept(submission).items()} == {
        "/app/pkg/a.py": "file",
        "/app/pkg/b.py": "deleted",
        "/app/pkg/z.py": "file",
    }


@pytest.mark.podman
async def test_what_may_not_leave_is_dropped_and_recorded(podman: Podman, busybox: str) -> None:
    line = """
    mkdir -p .git/hooks pkg/__pycache__ .venv/bin build x.egg-info tests sub /logs/verifier
    touch .git/config .git/hooks/post-checkout pkg/__pycache__/a.pyc top.pyc .venv/bin/python build/o x.egg-info/PKG
    echo 1 > /logs/verifier/reward.txt; echo x > tests/test_a.py; echo x > tests/test_new.py; touch sub/evil.pth
    mkdir sub/usercustomize; touch sub/usercustomize/__init__.py; ln -s sub sitecustomize
    touch sub/sitecustomize.py native.so setup.cfg; mkdir /solution; touch /solution/solve.sh /tmp/elsewhere
    """
    submission = await submit(podman, busybox, line, protected=("tests/", "setup.cfg"))
    assert _kept(submission) == {"/app/sub": ("dir", 0o755, b"")}
    assert _dropped(submission) == {
        "/app/.git": ("vcs", "added"),
        "/app/pkg/__pycache__": ("cache", "added"),
        "/app/top.pyc": ("cache", "added"),
        "/app/.venv": ("cache", "added"),
        "/app/build": ("build", "added"),
        "/app/x.egg-info": ("build", "added"),
        "/app/native.so": ("build", "added"),
        "/app/tests/test_a.py": ("protected", "modified"),
        "/app/tests/test_new.py": ("protected", "added"),
        "/app/sub/evil.pth": ("protected", "added"),
        "/app/sub/sitecustomize.py": ("protected", "added"),
        "/app/sub/usercustomize/__init__.py": ("protected", "added"),
        "/app/sitecustomize": ("protected", "added"),
        "/app/setup.cfg": ("protected", "added"),
        "/logs/verifier": ("reserved", "added"),
        "/solution": ("reserved", "added"),
    }


@pytest.mark.podman
async def test_what_gold_touches_is_not_protected(podman: Podman, busybox: str) -> None:
    line = "echo x > setup.cfg; echo y > tox.ini"
    one = await submit(podman, busybox, line, protected=("setup.cfg",), gold_paths=("/app/setup.cfg",))
    assert set(_kept(one)) == {"/app/setup.cfg"} and set(_dropped(one)) == {"/app/tox.ini"}
    gold = await submit(podman, busybox, line, protected=("setup.cfg",), trusted=True)
    assert set(_kept(gold)) == {"/app/setup.cfg", "/app/tox.ini"}


@pytest.mark.podman
async def test_a_file_of_named_tests_stays_protected_though_gold_touches_it(podman: Podman, busybox: str) -> None:
    line = "mkdir pkg; echo x > pkg/check.py; echo y > setup.cfg"
    protected, gold = ("setup.cfg", "/pkg/check.py"), ("/app/setup.cfg", "/app/pkg/check.py")
    one = await submit(podman, busybox, line, protected=protected, gold_paths=gold, test_files=("pkg/check.py",))
    assert "/app/setup.cfg" in _kept(one) and set(_dropped(one)) == {"/app/pkg/check.py"}


@pytest.mark.podman
async def test_a_huge_file_is_left_behind(podman: Podman, busybox: str) -> None:
    submission = await submit(podman, busybox, "dd if=/dev/zero of=big bs=1M count=20; echo small > small")
    assert set(_kept(submission)) == {"/app/small"}
    assert _dropped(submission) == {"/app/big": ("too large", "modified")}


@pytest.mark.podman
async def test_folders_without_end_are_left_behind(
    podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deeper than a walk may recurse, and longer than the host can name."""
    monkeypatch.setattr(container, "_DISK_EVERY", 3600)  # for it they are over any limit, if it comes by in time
    line = """
    deep=d; for i in 1 2 3 4 5 6; do deep=$deep/$deep; done; at=$PWD
    for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do mkdir -p $deep; cd $deep; done; echo x > bottom; cd $at
    long=$(printf '%0250d' 0); for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17; do mkdir $long; cd $long; done
    echo x > bottom; cd $at; mkdir -p .venv/$deep/$deep; echo small > small
    """
    submission = await submit(podman, busybox, line)
    long = "0" * 250
    assert _dropped(submission) == {
        "/app" + "/d" * 64: ("too deep", "added"),
        "/app" + f"/{long}" * 9: ("too deep", "added"),
        "/app/.venv": ("cache", "added"),
    }
    assert set(_kept(submission)) == {
        "/app/small", *("/app" + "/d" * n for n in range(1, 64)), *("/app" + f"/{long}" * n for n in range(1, 9)),
    }  # fmt: skip
    async with open_box(podman, BoxSpec(busybox, SMALL)) as fresh:
        submission.apply_to(fresh)
        assert (await fresh.run(["cat", "/app/small"])).stdout == b"small\n"


@pytest.mark.podman
@pytest.mark.parametrize("line", ["rm -rf /app", "mv /app /x; ln -s /etc /app", "mv /app /x; echo > /app"])
async def test_a_root_taken_away_still_gives_a_submission(podman: Podman, busybox: str, line: str) -> None:
    submission = await submit(
        podman, busybox, f"cd /; {line}", workspace={"/app/laid": File(b"")}, protected=("tests/",)
    )
    assert _dropped(submission)["/app"][0] == "special"
    assert _dropped(submission)["/app/pkg/conftest.py"] == ("protected", "deleted")
    assert not any(entry.path.startswith("/etc") for entry in submission.entries)
    assert _kept(submission)["/app/kept.txt"][0] == _kept(submission)["/app/laid"][0] == "deleted"
    spec = BoxSpec(busybox, SMALL, workdir="/app/pkg/gone", workspace={"/app/laid": File(b"")})
    async with open_box(podman, spec) as fresh:
        submission.apply_to(fresh)
        ending = await fresh.run(["find", "/app", "-type", "f"])
    assert sorted(ending.stdout.split()) == [b"/app/pkg/conftest.py", b"/app/tests/test_a.py"]


@pytest.mark.podman
async def test_applied_to_a_fresh_box_it_gives_the_same_files(podman: Podman, busybox: str) -> None:
    line = r"""
    echo more >> kept.txt; ln -s /etc/passwd link; rm -r tests; echo file > tests; rm old.txt; mkdir old.txt
    touch old.txt/x; printf x > "$(printf 'odd\n\377')"; echo new > pkg/new.py; rm pkg/a.py; chmod 700 pkg/b.py; rm laid
    """
    listing = (
        r"""find . | sort | while read -r f; do ls -ld "$f" | sed 's/ [0-9]* [A-Z][a-z]* .*//'; done; """
        "cat $(find . -type f -name '*.*')"
    )
    workspace = {"/app/laid": File(b"1")}
    async with open_box(podman, BoxSpec(busybox, SMALL, workspace=workspace)) as box:
        first = await box.run(["sh", "-c", f"{line}\n{listing}"])
        submission = await collect(box, ["/app"])
    async with open_box(podman, BoxSpec(busybox, SMALL, workspace=workspace)) as fresh:
        Submission.from_bytes(submission.to_bytes()).apply_to(fresh)
        second = await fresh.run(["sh", "-c", listing])
    assert not submission.dropped
    assert second.stdout == first.stdout and b"new" in first.stdout


@pytest.mark.podman
async def test_all_of_the_file_system_is_submitted_less_what_the_verifier_runs_on(podman: Podman, busybox: str) -> None:
    """A task without a working directory: its root is /."""
    line = (
        "mkdir -p /data /usr/local/bin /opt/x; echo 1 > /data/out; echo evil > /bin/sh2; "
        "cp /bin/sh2 /usr/local/bin/python3; echo 1 > /etc/profile; echo 1 > /opt/x/y; echo 1 > /out.txt"
    )
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        await box.run(["sh", "-c", line])
        everything = await collect(box, ["/"])
        named = await collect(box, ["/", "/opt/x"])
    files = {entry.path for entry in everything.entries if entry.kind == "file"}
    assert {"/data/out", "/out.txt"} <= files
    assert not any(path.startswith(("/bin/", "/usr/", "/etc/", "/opt/")) for path in files)
    assert "/opt/x/y" in named.paths() and "/etc/profile" not in named.paths()


@pytest.mark.podman
async def test_settings_of_the_test_runner_stay_behind(podman: Podman, busybox: str) -> None:
    submission = await submit(podman, busybox, "touch pytest.toml .pytest.toml pytest.ini a.toml")
    assert submission.paths() == {"/app/a.toml"}
    assert {path for path, how in _dropped(submission).items() if how == ("protected", "added")} == {
        "/app/pytest.toml", "/app/.pytest.toml", "/app/pytest.ini",
    }  # fmt: skip
