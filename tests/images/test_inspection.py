from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lego.images.inspection import Inspection, copies, fingerprints, kept, leaks, parse, record_path
from lego.tasks.task import Environment, File, Task

HIDDEN = b"def test_the_window_is_closed(): assert window(3) == 4\n"


def task(**trees: dict[str, File]) -> Task:
    return Task(
        id="t1",
        digest="d",
        instruction="",
        environment=Environment(),
        tests=trees.get("tests", {}),
        solution=trees.get("solution", {}),
    )


def test_parse_tells_files_from_problems():
    found = parse(
        "repository 1 /app/.git\nrepository 4 /old/.git.orig\nrepository ? /x\nfolder /tests\n"
        f"{'a' * 64}  /app/with space.py\nend\n"
    )
    assert found.files == {"a" * 64: "/app/with space.py"}
    assert [problem.split()[0] for problem in found.problems] == ["/old/.git.orig", "/x", "/tests"]
    assert "4 commits" in found.problems[0]


def test_a_listing_without_its_end_is_no_listing():
    with pytest.raises(ValueError, match="did not finish"):
        parse("repository 1 /app/.git\n")


def test_a_hidden_file_under_any_name_is_a_leak():
    seen = Inspection({hashlib.sha256(HIDDEN).hexdigest(): "/app/.cache/x"}, ())
    assert leaks(seen, [task(tests={"test_window.py": File(HIDDEN)})]) == [
        "/app/.cache/x is tests/test_window.py of task t1"
    ]
    assert leaks(seen, [task(solution={"solve.sh": File(HIDDEN)})]) == ["/app/.cache/x is solution/solve.sh of task t1"]


def test_small_files_prove_nothing():
    seen = Inspection({hashlib.sha256(b"").hexdigest(): "/app/__init__.py"}, ())
    assert leaks(seen, [task(tests={"__init__.py": File(b"")})]) == []


def test_a_record_survives_storage():
    seen = Inspection({"a": "/b"}, ("c",))
    assert Inspection.from_json(seen.to_json()) == seen


def test_what_the_solution_makes_is_found_under_any_name_and_short_files_are_not_looked_for():
    made = fingerprints({"/app/window.py": HIDDEN, "/app/__init__.py": b""})
    seen = Inspection(
        {hashlib.sha256(HIDDEN).hexdigest(): "/opt/later/w.py", hashlib.sha256(b"").hexdigest(): "/e"}, ()
    )
    assert copies(seen, made) == ["/opt/later/w.py is /app/window.py as the solution makes it"]
    assert copies(Inspection({}, ()), made) == []


def test_a_record_is_found_again_or_is_none(tmp_path: Path):
    seen = Inspection({"a": "/b"}, ("c",))
    assert kept(tmp_path, "k") is None
    record_path(tmp_path, "k").parent.mkdir()
    record_path(tmp_path, "k").write_text(seen.to_json())
    assert kept(tmp_path, "k") == seen
