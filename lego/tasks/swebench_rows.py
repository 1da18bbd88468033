"""Rows in the shape of SWE-bench: reading them from files, and what the sets of that shape call the same things."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lego.errors import TaskError
from lego.tasks import swebench_r2e
from lego.tasks.harbor_words import in_words
from lego.tasks.reading import OnProblem, check_plain, in_short, json_of, raised
from lego.tasks.task import LOG_PARSERS, File, Tree

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


def _text(value: Any) -> Any:
    """A version may be written as a number."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_text)]
_WORD = r"^[^\s/]+$"
_REPO = r"^[\w.-]+(/[\w.-]+)*$"
_COMMIT = r"^[0-9A-Za-z][\w./-]*$"


class _Fields(BaseModel):
    """What a row's fields may hold. Names and commits become words of commands."""

    model_config = ConfigDict(strict=True)
    id: Annotated[str, Field(pattern=_WORD)]
    repo: Annotated[str, Field(pattern=_REPO)]
    problem: str
    patch: str
    base_commit: Annotated[str, Field(pattern=_COMMIT)] | None = None
    version: Text | None = None
    test_patch: str | None = None
    image: Annotated[str, Field(pattern=r"^[^\s-]\S*$")] | None = None
    dockerfile: str | None = None


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


def read(path: Path, on_problem: OnProblem = raised) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, raw row) of each row of a .json, .jsonl or .parquet file, the first two also as .gz.

    A line that is no row is told to `on_problem`, which raises the TaskError unless something else is asked for. Raises
    TaskError where the file itself cannot be read.
    """
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(path, on_problem)
        return
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for where, value in _values(path, file, name.endswith(".json")):
                try:
                    row = _object(value, where)
                except TaskError as error:
                    on_problem(error)
                    continue
                yield where, row
    except (OSError, EOFError, ValueError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        hint = "`path` and `options.recipes` of the source in `tasks` say which files are read"
        raise TaskError(f"{path}: cannot be read: {why}", hint=hint, fault="user") from error


def _values(path: Path, file: BinaryIO | gzip.GzipFile, whole: bool) -> Iterator[tuple[str, Any]]:
    """(where, value) of each row: of one JSON document if `whole`, else each line."""
    if not whole:
        yield from ((f"{path} line {number}", line) for number, line in enumerate(file, 1) if line.strip())
        return
    body = json_of(file.read(), path, fault="user")
    # A list of rows, or rows by their id.
    rows = list(body.values()) if isinstance(body, dict) and "instance_id" not in body else body
    yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows if isinstance(rows, list) else [rows]))


def parse(raw: Mapping[str, Any], where: str) -> Row:
    """A raw row of any of the sets that share the shape. Raises TaskError naming what is missing."""
    get = {meaning: _first(raw, names) for meaning, names in _NAMES.items()}
    if "expected_output_json" in raw:
        return _r2e(raw, where)
    lacking = [_NAMES[key][0] for key in ("id", "repo", "problem", "patch", "fail_to_pass") if not get[key]]
    if lacking:
        raise TaskError(f"{where}: not a SWE-bench row: it has no {', '.join(lacking)}")
    try:
        # Sets that are tables say that there is nothing by an empty text.
        row = _Fields.model_validate({key: get[key] for key in _Fields.model_fields if get[key] != ""})
    except ValidationError as error:
        written = {key: next((one for one in names if one in raw), names[0]) for key, names in _NAMES.items()}
        raise TaskError(f"{where}: {in_words(error, written)}") from error
    return Row(
        id=row.id,
        repo=row.repo,
        problem=row.problem,
        patch=_patch(row.patch),
        test_patch=_patch(row.test_patch or ""),
        base_commit=row.base_commit or "",
        version=row.version or "",
        fail_to_pass=_ids(get["fail_to_pass"], f"{where}: FAIL_TO_PASS"),
        pass_to_pass=_ids(get["pass_to_pass"], f"{where}: PASS_TO_PASS"),
        image=row.image or "",
        dockerfile=row.dockerfile or "",
        spec=_spec(get["spec"], f"{where}: install_config"),
        introduces=not row.test_patch and not row.base_commit,
    )


def _spec(value: Any, where: str) -> Mapping[str, Any]:
    spec = _object(value or {}, where)
    python, parser = spec.get("python"), spec.get("log_parser")
    if python is not None and not isinstance(_text(python), str):
        raise TaskError(f"{where}: python must be a version, not {python!r:.80}")
    if parser and (not isinstance(parser, str) or parser.removeprefix("parse_log_") not in LOG_PARSERS):
        raise TaskError(
            f"{where}: log_parser: lego has no parser of logs named {parser!r:.80}",
            hint=f"parsers: {', '.join(LOG_PARSERS)}",
        )
    return spec


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


def _patch(text: str) -> bytes:
    """A patch as bytes; git refuses one whose last line has no end."""
    data = text.encode()
    return data if not data or data.endswith(b"\n") else data + b"\n"


def _ids(value: Any, where: str) -> tuple[str, ...]:
    """Test ids written as a list, as JSON, or not at all."""
    if isinstance(value, str):
        value = json_of(value, where) if value.strip() else []
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise TaskError(f"{where}: not a list of test ids")
    return tuple(dict.fromkeys(value))


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if isinstance(value, str | bytes):
        value = json_of(value, where)
    if not isinstance(value, dict):
        raise TaskError(f"{where}: not a JSON object")
    return dict(value)


def _parquet(path: Path, on_problem: OnProblem) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        import pyarrow.parquet as parquet
    except ImportError:
        raise TaskError(
            f"{path}: reading Parquet needs pyarrow", hint="pip install 'lego[parquet]'", fault="user"
        ) from None
    try:
        rows = parquet.read_table(path).to_pylist()
    except Exception as error:  # of its own making, some of it
        raise TaskError(f"{path}: cannot be read: {in_short(error)}", fault="user") from error
    for number, row in enumerate(rows):
        where = f"{path}, row {number}"
        try:
            check_plain(row, where)
        except TaskError as error:
            on_problem(error)
            continue
        yield where, row
