from __future__ import annotations

import errno
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lego.sandbox import layers
from lego.sandbox.layers import ChangesJob, Entry
from lego.sandbox.rootfs import UNFIT, Carried, LayJob, ReadJob, TreeJob, perform
from lego.sandbox.watch import disk_use

# The container's root is whoever runs the tests, so that these run without root too.
SHIFT = os.getuid()


def lay(root: Path, entries: Sequence[Entry], **more: object) -> None:
    perform(LayJob(str(root), SHIFT, entries, **more))  # type: ignore[arg-type]


def read(root: Path, path: str) -> bytes | None:
    found = perform(ReadJob(str(root), (path,)))
    assert isinstance(found, dict)
    return found[path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (tmp_path / "secret").write_text("the host's")
    return folder


@pytest.fixture(autouse=True)
def emptied(tmp_path: Path) -> Iterator[None]:
    """What is nested too deeply for pytest to remove goes now."""
    yield
    subprocess.run(["rm", "-rf", tmp_path], check=True)


def nest(folder: Path, name: str, times: int) -> None:
    """Folders of one name inside one another."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(times):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_files_links_folders_and_deletions(root: Path) -> None:
    (root / "old").mkdir()
    (root / "old" / "f").write_text("x")
    lay(
        root,
        [
            Entry("/a/b/c", "file", 0o750, b"data"),
            Entry("/a/l", "link", data=b"b/c"),
            Entry("/d", "dir", 0o700),
            Entry("/old/f", "deleted"),
            Entry("/old", "deleted"),
            Entry("/never/was", "deleted"),
        ],
    )
    assert (root / "a/b/c").read_bytes() == b"data" and stat.S_IMODE((root / "a/b/c").stat().st_mode) == 0o750
    assert os.readlink(root / "a/l") == "b/c" and stat.S_IMODE((root / "d").stat().st_mode) == 0o700
    assert not (root / "old").exists()
    assert read(root, "/a/l") == b"data" and read(root, "/a") is None and read(root, "/none") is None


def test_a_folder_that_holds_something_is_neither_deleted_nor_replaced(root: Path) -> None:
    (root / "tests").mkdir()
    (root / "tests" / "kept").write_text("x")
    lay(root, [Entry("/tests", "deleted"), Entry("/tests", "link", data=b"/evil"), Entry("/tests", "file", data=b"no")])
    assert (root / "tests" / "kept").read_text() == "x"


def test_a_working_folder_is_there_in_the_end(root: Path) -> None:
    (root / "file").write_text("in the way")
    lay(root, [], folders=("/some/here", "/file"))
    assert (root / "some/here").is_dir() and (root / "file").is_dir()


@pytest.mark.parametrize("target", ["../../..", "/../..", "/", "../secret", "loop"])
def test_no_link_leads_out(root: Path, target: str) -> None:
    os.symlink(target, root / "loop" if target == "loop" else root / "way")
    for path in ("/way/secret", "/way", "/loop", "/way/../secret", "/../secret"):
        assert read(root, path) != b"the host's"


def test_a_link_through_very_many_folders_is_followed_or_is_nothing(root: Path) -> None:
    """With one descriptor open, not with one a folder: a process has a thousand."""
    nest(root, "d", 1500)
    (root / "end").write_bytes(b"here")
    os.symlink("/".join(["d"] * 1500), root / "down")
    os.symlink("x" * 300, root / "long")
    assert read(root, "/down/" + "../" * 1500 + "end") == b"here"
    assert read(root, "/down/none") is None and read(root, "/long") is None
    with pytest.raises(OSError, match="too long"):
        lay(root, [Entry("/long/x", "file")])


def test_a_file_laid_through_a_link_stays_inside(root: Path, tmp_path: Path) -> None:
    os.symlink("../../../../..", root / "up")
    os.symlink(str(tmp_path), root / "absolute")
    lay(root, [Entry("/up/etc/x", "file", data=b"1"), Entry("/absolute/secret", "file", data=b"1")])
    assert (root / "etc/x").read_bytes() == b"1"
    assert (tmp_path / "secret").read_text() == "the host's"


parts = st.sampled_from(["a", "b", "..", ".", "l"])
some_paths = st.lists(parts, min_size=1, max_size=4).map(lambda p: "/" + "/".join(p))
targets = st.lists(parts, min_size=1, max_size=4).flatmap(
    lambda p: st.sampled_from(["/".join(p), "/" + "/".join(p), "../../../" + "/".join(p)])
)
some_entries = st.lists(
    st.one_of(
        st.builds(Entry, some_paths, st.just("link"), data=targets.map(str.encode)),
        st.builds(Entry, some_paths, st.sampled_from(["file", "dir", "deleted"]), st.just(0o755), st.just(b"laid")),
    ),
    max_size=8,
)


@given(some_entries)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_is_laid_nothing_outside_changes(tmp_path: Path, entries: list[Entry]) -> None:
    outer = tmp_path / os.urandom(8).hex()
    inner = outer / "x" / "root"
    inner.mkdir(parents=True)
    for entry in entries:
        try:
            lay(inner, [entry])
        except OSError:
            continue
    assert [path.name for path in outer.iterdir()] == ["x"]
    assert [path.name for path in (outer / "x").iterdir()] == ["root"]


def test_owners_are_looked_up_in_the_containers_own_files(root: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give files away")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("agent:x:1000:1001::/home/agent:/bin/sh\n")
    (root / "etc/group").write_text("team:x:1500:\n")
    for number, owner in enumerate(("agent", "agent:team", "1000", "7:8", "")):
        perform(LayJob(str(root), 5000, [Entry(f"/f{number}", "file")], owner))
    owners = [((root / f"f{number}").stat().st_uid, (root / f"f{number}").stat().st_gid) for number in range(5)]
    assert owners == [(6000, 6001), (6000, 6500), (6000, 6001), (5007, 5008), (5000, 5000)]
    with pytest.raises(OSError, match="nobody"):
        perform(LayJob(str(root), 0, [Entry("/x", "file")], "nobody"))


@pytest.mark.parametrize("number", ["", "-1", "²", "abc", "9" * 10, "9" * 5000, "0x0"])
def test_an_id_that_is_none_is_said(root: Path, number: str) -> None:
    (root / "etc").mkdir()
    for row in (f"root:x:{number}:0:", f"root:x:0:{number}:"):
        (root / "etc/passwd").write_text(row)
        with pytest.raises(OSError, match="no id of a user or group"):
            perform(LayJob(str(root), 0, [Entry("/x", "file")], "root"))


@pytest.mark.parametrize("owner", ["", "root"])
def test_a_root_that_is_gone_is_nothing_that_lies_in_it(tmp_path: Path, owner: str) -> None:
    for job in (
        LayJob(str(tmp_path / "gone"), 0, [Entry("/x", "file")], owner),
        ReadJob(str(tmp_path / "gone"), ("/x",)),
        TreeJob(str(tmp_path / "gone"), ("/x",), ((),)),
    ):
        with pytest.raises(OSError, match="root is not there") as raised:
            perform(job)
        assert raised.value.errno not in UNFIT


def test_what_another_process_finds_comes_back_with_its_number(tmp_path: Path) -> None:
    job = pickle.dumps(ReadJob(str(tmp_path), ("/x",)))
    run = [sys.executable, "-c", "from lego.sandbox.rootfs import main; main()"]
    assert pickle.loads(subprocess.run(run, input=job, stdout=subprocess.PIPE, check=True).stdout) == {"/x": None}
    for failing, number in (
        (LayJob(str(tmp_path), 0, [Entry("/x", "file")], "nobody"), errno.EINVAL),
        (ReadJob(str(tmp_path / "unmounted"), ("/x",)), errno.ESTALE),
    ):
        done = subprocess.run(run, input=pickle.dumps(failing), stdout=subprocess.PIPE, check=True)
        error = pickle.loads(done.stdout)
        assert isinstance(error, OSError) and error.errno == number


def test_large_files_are_named_and_left(root: Path, tmp_path: Path) -> None:
    upper = tmp_path / "upper"
    for folder in (root, upper):
        (folder / "app").mkdir(parents=True)
        for name, size in (("a", 10), ("b", 200), ("c", 60), ("d", 60)):
            (folder / "app" / name).write_bytes(b"x" * size)
    found = perform(ChangesJob(str(root), str(upper), [], SHIFT, ("/app",), file_cap=100, total_cap=100))
    assert [entry.path for entry in found.entries] == ["/app", "/app/a", "/app/c"]  # type: ignore[attr-defined]
    assert found.oversize == ["/app/b", "/app/d"]  # type: ignore[attr-defined]


def test_originals_come_along_until_their_room_is_used_each_counted_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    class Looked(Entry):
        def __getattribute__(self, name: str) -> object:
            looks.extend([name] if name == "data" else [])
            return super().__getattribute__(name)

    monkeypatch.setattr(layers, "Entry", Looked)
    upper, lower = tmp_path / "upper", tmp_path / "lower"
    for folder, text in ((root, b"new"), (upper, b"new"), (lower, b"x" * 10)):
        (folder / "app").mkdir(parents=True)
        for number in range(50):
            (folder / f"app/{number:02}").write_bytes(text)
    found = layers.changes(ChangesJob(str(root), str(upper), [str(lower)], SHIFT, ("/app",), originals_cap=305))
    assert list(found.originals) == [f"/app/{number:02}" for number in range(30)]
    assert len(looks) <= 100


def test_what_cannot_be_named_is_over_any_limit(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 5000)
    assert 4096 <= disk_use(str(tmp_path), 1 << 20) <= 1 << 14
    nest(tmp_path, "x" * 250, 17)
    assert disk_use(str(tmp_path), 1 << 20) > 1 << 20


def carried(root: Path, source: str, *exclude: str, cap: int = 1 << 20) -> Carried:
    found = perform(TreeJob(str(root), (source,), (exclude,), cap))
    assert isinstance(found, Carried)
    return found


def test_what_is_carried_is_bytes_and_leads_nowhere_else(root: Path) -> None:
    (root / "out/deep").mkdir(parents=True)
    (root / "out/deep/\udcff").write_bytes(b"\0\xff")
    (root / "out/big").write_bytes(b"x" * 100)
    os.mkfifo(root / "out/pipe")
    for name, target in {
        "in": "../deep/x", "up": "../../secret", "out": str(root.parent / "secret"), "round": "x/../../../out/x",
    }.items():  # fmt: skip
        (root / "out/deep" / name).symlink_to(target)
    found = carried(root, "/out", "*.log", "skip", cap=50)
    assert {entry.path: (entry.kind, entry.data) for entry in found.entries} == {
        "/out": ("dir", b""),
        "/out/deep": ("dir", b""),
        "/out/deep/\udcff": ("file", b"\0\xff"),
        "/out/deep/in": ("link", b"../deep/x"),
    }
    assert sorted(found.left_out) == ["/out/big", "/out/deep/out", "/out/deep/round", "/out/deep/up", "/out/pipe"]


def test_a_source_that_is_a_link_is_resolved_inside_the_root(root: Path) -> None:
    (root / "secret").write_text("the container's")
    (root / "a").symlink_to("../secret")
    (root / "gone").symlink_to("/nowhere/at/all")
    assert [entry.data for entry in carried(root, "/a").entries] == [b"the container's"]
    assert carried(root, "/gone") == carried(root, "/none") == Carried()


@pytest.mark.parametrize(
    ("pattern", "kept"),
    [
        ("*.log", ["d", "d/x", "d/e", "d/e/x"]),
        ("e", ["d", "d/x", "d/x.log"]),
        ("d/e/", ["d", "d/x", "d/x.log"]),
        ("d", []),
    ],
)
def test_patterns_are_tars(root: Path, pattern: str, kept: list[str]) -> None:
    (root / "out/d/e").mkdir(parents=True)
    for name in ("d/x", "d/x.log", "d/e/x"):
        (root / "out" / name).write_text("")
    assert sorted(entry.path for entry in carried(root, "/out", pattern).entries) == sorted(
        ["/out", *(f"/out/{name}" for name in kept)]
    )


def test_a_folder_is_emptied_and_what_it_linked_to_is_not(root: Path) -> None:
    for path in ("full/deep/x", "full/y", "other/z"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("")
    (root / "full/link").symlink_to("../other")
    (root / "led").symlink_to("other")
    lay(root, [Entry("/full/new", "file")], emptied=["/full", "/led", "/none", "/full/y/none"])
    assert [path.name for path in (root / "full").iterdir()] == ["new"]
    assert (root / "other/z").exists() and not (root / "led").is_symlink()


def test_a_script_may_be_executed_afterwards(root: Path) -> None:
    lay(root, [Entry("/tests/test.sh", "file", 0o644)], script="/tests/test.sh")
    assert stat.S_IMODE((root / "tests/test.sh").stat().st_mode) == 0o755
    lay(root, [], script="/none")
