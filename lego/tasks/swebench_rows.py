"""Rows in the shape of SWE-bench: reading them from files, and what the sets of that shape call the same things."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lego.errors import TaskError
from lego.tasks import swebench_r2e
from lego.tasks.task import File, Tree

_NAMES: Mapping[str, tuple[str, ...]] = {
    "id": ("instance_id",),
    "repo": ("repo",),
    "base_commit": ("base_commit",),
    "version": ("version",),
    "problem": ("problem_statement",),
    "patch": ("patch",),
    "test_patch": ("test_patch",),
    "fail_to_pass": ("FAIL_TO_PASS", "fail_to_pass"),
    "pass_to_pass": ("PASS_TO_PASS", "pass_to_pass"),
    "image": ("docker_image", "image_name"),
    "dockerfile": ("dockerfile",),
    "spec": ("install_config",),
}
"""What a row means -> the fields that say it, the first that is there. SWE-bench, SWE-Gym, SWE-rebench and SWE-smith
write most of them alike; R2E's are others, and `swebench_r2e` reads them."""


@dataclass(frozen=True)
class Row:
    """One row. `spec`: its own environment (python, packages, install, test_cmd, log_parser), where it has one.

    `introduces`: the patch puts the bug in, and its inverse is the solution (SWE-smith). `hidden`: test files that the
    row brings itself, by path in the repository. `remove`: paths of the named image that hold them already.
    """

    id: str
    repo: str
    problem: str
    patch: bytes
    test_patch: bytes = b""
    base_commit: str = ""
    version: str = ""
    fail_to_pass: tuple[str, ...] = ()
    pass_to_pass: tuple[str, ...] = ()
    image: str = ""
    dockerfile: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)
    introduces: bool = False
    hidden: Tree = field(default_factory=dict)
    remove: tuple[str, ...] = ()


def read(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, raw row) of each row of a .json, .jsonl or .parquet file, the first two also as .gz.

    Raises TaskError where the file cannot be read, naming the line.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(path)
        return
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            if name.endswith(".json"):
                body = json.load(file)
                # A list of rows, or rows by their id.
                rows = list(body.values()) if isinstance(body, dict) and "instance_id" not in body else body
                for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
                    yield f"{path}, row {number}", _object(row, f"{path}, row {number}")
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    where = f"{path} line {number}"
                    yield where, _object(line, where)
    except (OSError, EOFError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        hint = "`path` and `options.recipes` of the source in `tasks` say which files are read"
        raise TaskError(f"{path}: cannot be read: {why}", hint=hint, fault="user") from error


def parse(raw: Mapping[str, Any], where: str) -> Row:
    """A raw row of any of the sets that share the shape. Raises TaskError naming what is missing."""
    get = {meaning: _first(raw, names) for meaning, names in _NAMES.items()}
    if "expected_output_json" in raw:
        return _r2e(raw, where)
    lacking = [_NAMES[key][0] for key in ("id", "repo", "problem", "patch", "fail_to_pass") if not get[key]]
    if lacking:
        raise TaskError(f"{where}: not a SWE-bench row: it has no {', '.join(lacking)}")
    return Row(
        id=str(get["id"]),
        repo=str(get["repo"]),
        problem=str(get["problem"]),
        patch=_patch(get["patch"]),
        test_patch=_patch(get["test_patch"]),
        base_commit=str(get["base_commit"] or ""),
        version=str(get["version"] or ""),
        fail_to_pass=_ids(get["fail_to_pass"], f"{where}: FAIL_TO_PASS"),
        pass_to_pass=_ids(get["pass_to_pass"], f"{where}: PASS_TO_PASS"),
        image=str(get["image"] or ""),
        dockerfile=str(get["dockerfile"] or ""),
        spec=_object(get["spec"] or {}, f"{where}: install_config"),
        introduces=not get["test_patch"] and not get["base_commit"],
    )


def _r2e(raw: Mapping[str, Any], where: str) -> Row:
    """R2E: the tests are files of the row, and lie in the image too, as does much that gives the solution away."""
    found = swebench_r2e.read(raw, where)
    return Row(
        id=f"{found.repo}__{found.commit[:12]}",
        repo=found.repo,
        problem=found.problem,
        patch=found.patch,
        pass_to_pass=found.passing,
        image=found.image,
        spec={"test_cmd": found.command, "log_parser": "r2e"},
        hidden={path: File(data) for path, data in found.tests.items()},
        remove=swebench_r2e.GIVES_AWAY,
    )


def _first(raw: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((raw[name] for name in names if raw.get(name) is not None), None)


def _patch(text: object) -> bytes:
    """A patch as bytes; git refuses one whose last line has no end."""
    data = str(text or "").encode()
    return data if not data or data.endswith(b"\n") else data + b"\n"


def _ids(value: Any, where: str) -> tuple[str, ...]:
    """Test ids written as a list, as JSON, or not at all."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except ValueError as error:
            raise TaskError(f"{where}: neither a list nor JSON of one: {value[:80]!r}") from error
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise TaskError(f"{where}: not a list of test ids")
    return tuple(dict.fromkeys(value))


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise TaskError(f"{where}: not a JSON object")
    return dict(value)


def _parquet(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise TaskError(
            f"{path}: reading Parquet needs pyarrow", hint="pip install 'lego[parquet]'", fault="user"
        ) from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:
        raise TaskError(f"{path}: cannot be read: {error}", fault="user") from error
    for number, row in enumerate(rows):
        yield f"{path}, row {number}", row
