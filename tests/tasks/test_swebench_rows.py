from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lego.errors import TaskError
from lego.tasks.swebench_patch import directives, touched
from lego.tasks.swebench_rows import parse, read

ROW: dict[str, Any] = {
    "instance_id": "o__r-1",
    "repo": "o/r",
    "base_commit": "a" * 40,
    "version": "1.0",
    "problem_statement": "It fails.",
    "patch": "diff --git a/r.py b/r.py\n--- a/r.py\n+++ b/r.py\n@@ -1 +1 @@\n-a\n+b",
    "test_patch": "diff --git a/tests/test_r.py b/tests/test_r.py\n--- a/tests/test_r.py\n+++ b/tests/test_r.py\n"
    "@@ -1 +1 @@\n-a\n+b\n",
    "FAIL_TO_PASS": '["tests/test_r.py::test_a[x", "tests/test_r.py::test_b"]',
    "PASS_TO_PASS": ["tests/test_r.py::test_c"],
}


def written(folder: Path, name: str) -> Path:
    path = folder / name
    lines = "\n".join(json.dumps(row) for row in (ROW, ROW | {"instance_id": "o__r-2"})) + "\n\n"
    if name.endswith(".parquet"):
        arrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist([ROW, ROW | {"instance_id": "o__r-2"}]), path)
        return path
    text = json.dumps([ROW, ROW | {"instance_id": "o__r-2"}]) if ".json" in name and ".jsonl" not in name else lines
    data = text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_rows_are_read_from_each_kind_of_file(tmp_path: Path, name: str) -> None:
    rows = [parse(raw, where) for where, raw in read(written(tmp_path, name))]
    assert [row.id for row in rows] == ["o__r-1", "o__r-2"]
    assert rows[0].fail_to_pass == ("tests/test_r.py::test_a[x", "tests/test_r.py::test_b")
    assert rows[0].pass_to_pass == ("tests/test_r.py::test_c",)
    assert rows[0].patch.endswith(b"+b\n") and not rows[0].introduces


def test_rows_by_their_id_and_a_single_row(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"o__r-1": ROW}))
    (tmp_path / "b.json").write_text(json.dumps(ROW))
    for name in ("a.json", "b.json"):
        assert [raw["instance_id"] for _, raw in read(tmp_path / name)] == ["o__r-1"]


@pytest.mark.parametrize(
    ("content", "name"),
    [("{", "a.json"), ("[1]", "a.json"), ('{"a": 1}\n{', "a.jsonl"), ("x", "a.jsonl.gz"), ("x", "a.parquet")],
)
def test_what_cannot_be_read_says_where(tmp_path: Path, content: str, name: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(TaskError, match=name):
        list(read(tmp_path / name))


@pytest.mark.parametrize("key", ["instance_id", "repo", "problem_statement", "patch", "FAIL_TO_PASS"])
def test_what_is_missing_is_named(key: str) -> None:
    with pytest.raises(TaskError, match=f"line 7.*{key}"):
        parse({name: value for name, value in ROW.items() if name != key}, "line 7")


@pytest.mark.parametrize("ids", ["tests::a", "[1]", {"a": 1}, [1]])
def test_ids_in_another_shape_are_refused(ids: object) -> None:
    with pytest.raises(TaskError, match="FAIL_TO_PASS"):
        parse(ROW | {"FAIL_TO_PASS": ids}, "x")


@pytest.mark.parametrize("ids", [None, "", "[]", []])
def test_no_tests_to_keep_is_no_fault(ids: object) -> None:
    assert parse(ROW | {"PASS_TO_PASS": ids}, "x").pass_to_pass == ()


def test_swe_smith_rows_put_the_bug_in() -> None:
    names = ("instance_id", "repo", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")
    row = parse({name: ROW[name] for name in names} | {"image_name": "example/image"}, "x")
    assert row.introduces and row.image == "example/image"


def test_swe_rebench_rows_bring_their_environment() -> None:
    config = {
        "python": "3.9",
        "install": "pip install -e .",
        "test_cmd": "pytest -rA",
        "log_parser": "parse_log_pytest",
    }
    row = parse(ROW | {"install_config": json.dumps(config), "docker_image": "example/image"}, "x")
    assert row.spec == config and row.image == "example/image" and not row.introduces


R2E = {
    "repo_name": "r", "docker_image": "example/image", "commit_hash": "c" * 40, "problem_statement": "It fails.",
    "expected_output_json": json.dumps({"TestA.test_b": "PASSED", "test_c": "FAILED"}),
    "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "test_file_codes": ["x = 1\n"]}),
}  # fmt: skip


def r2e_file(path: str, before: str | None, *lines: tuple[str, str], old: int, new: int) -> dict[str, object]:
    """One file of an R2E row's commit, one hunk."""
    return {
        "header": {"file": {"path": path}, "misc_line": None if before else "new file mode 100644"},
        "minus_file": {"path": f"a/{path}" if before else "/dev/null"},
        "plus_file": {"path": f"b/{path}"},
        "hunks": [
            {
                "descriptor": {
                    "old_range": {"start": min(old, 1), "length": old},
                    "new_range": {"start": 1, "length": None if new == 1 else new},
                    "section": "",
                },
                "line_group": {"all_lines": [{"type": kind, "content": text} for kind, text in lines]},
            }
        ],
    }


def test_r2e_rows_bring_their_tests() -> None:
    row = parse(R2E, "x")
    assert row.id == f"r__{'c' * 12}" and row.pass_to_pass == ("TestA.test_b",) and row.patch == b""
    assert row.hidden["r2e_tests/test_1.py"].data == b"x = 1\n"
    assert {"/r2e_tests", "/testbed/parsed_commit.json", "/testbed/run_tests.sh"} <= set(row.remove)
    assert parse(R2E | {"repo_name": "orange3"}, "x").spec["test_cmd"].count("xvfb-run") == 1
    with pytest.raises(TaskError, match="R2E"):
        parse(R2E | {"execution_result_content": "{}"}, "x")
    with pytest.raises(TaskError, match="not an R2E row: KeyError"):
        parse(R2E | {"parsed_commit_content": json.dumps({"file_diffs": [{}]})}, "x")


def test_the_fix_of_an_r2e_row_is_its_commit_without_the_tests(tmp_path: Path) -> None:
    changed = r2e_file(
        "pkg/a.py", "x", ("context", "a = 1"), ("deleted", "b = 1"), ("note", "No newline at end of file"),
        ("added", "b = 2"), old=2, new=2,
    )  # fmt: skip
    added = r2e_file("pkg/new.py", None, ("added", "c = 3"), old=0, new=1)
    tests = [r2e_file(path, None, ("added", "x"), old=0, new=1) for path in ("pkg/test_a.py", "tests/b.py", "c.txt")]
    row = parse(R2E | {"parsed_commit_content": json.dumps({"file_diffs": [changed, added, *tests]})}, "x")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/a.py").write_text("a = 1\nb = 1")
    subprocess.run(["git", "apply", "-"], input=row.patch, cwd=tmp_path, check=True)
    assert (tmp_path / "pkg/a.py").read_text() == "a = 1\nb = 2\n"
    assert (tmp_path / "pkg/new.py").read_text() == "c = 3\n"
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["a.py", "new.py"]


PATCH = b"""\
diff --git a/tests/old.py b/tests/old.py
deleted file mode 100644
--- a/tests/old.py
+++ /dev/null
@@ -1 +0,0 @@
-a
diff --git a/tests/new.py b/tests/new.py
new file mode 100644
--- /dev/null
+++ b/tests/new.py
@@ -0,0 +1 @@
+a
diff --git a/tests/from.py b/tests/to.py
similarity index 100%
rename from tests/from.py
rename to tests/to.py
diff --git a/tests/data.json b/tests/data.json
--- a/tests/data.json
+++ b/tests/data.json
@@ -1 +1 @@
-a
+b
"""


def test_a_deleted_test_file_is_touched_and_not_run() -> None:
    found = touched(PATCH, "x")
    assert found.all == {"tests/old.py", "tests/new.py", "tests/from.py", "tests/to.py", "tests/data.json"}
    assert sorted(directives(found, "o/r")) == ["tests/new.py", "tests/to.py"]
    assert sorted(directives(found, "django/django")) == ["new", "to"]


@pytest.mark.parametrize("patch", [b"hello\n", b"--- a/x\n+++ b/x\n@@ -1,5 +1 @@\n-a\n"])
def test_what_is_no_patch_is_refused(patch: bytes) -> None:
    with pytest.raises(TaskError, match="row 3"):
        touched(patch, "row 3")


def test_the_published_rows(shared_data: Path) -> None:
    rows = [parse(raw, where) for where, raw in read(shared_data / "swebench_verified_500.jsonl.gz")]
    assert len(rows) == 500
    assert sum(not row.pass_to_pass for row in rows) == 11
    only_new = [row.id for row in rows if not touched(row.test_patch, row.id).before]
    assert sorted(only_new) == ["django__django-16877", "sphinx-doc__sphinx-8595", "sphinx-doc__sphinx-9711"]
    assert all(touched(row.patch, row.id).all for row in rows)
    # Its test patch changes lists of addresses that a test reads: the whole suite is run.
    without = [row.id for row in rows if not directives(touched(row.test_patch, row.id), row.repo)]
    assert without == ["django__django-10097"]
