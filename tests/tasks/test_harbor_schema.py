"""Harbor's own JSON Schema of task.toml against what `load` makes of a file: nothing that it knows is passed over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from lego.errors import TaskError
from lego.tasks.harbor import load
from tests._toml import document

SCHEMA = json.loads((Path(__file__).parent / "data/harbor_0.26_task_toml.schema.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMA)
TEXTS = st.sampled_from(
    [
        "main",
        "/app",
        "/logs/artifacts/",
        "a/../b",
        "org/name",
        "x",
        "",
        "2x2",
        "${HOME}",
        "${A:-b}",
        "*.log",
        "127.0.0.1",
    ]
) | st.text(st.characters(codec="utf-8"), max_size=6)
NUMBERS = st.integers(-2, 4096) | st.floats(-1, 1e4) | st.sampled_from([2.0, float("inf"), float("nan")])


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a JSON Schema of the kinds that Harbor's uses allows. TOML has no null."""
    schema = resolved(schema)
    if "anyOf" in schema:
        return st.one_of([values(one) for one in schema["anyOf"] if one.get("type") != "null"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        parts = {key: values(one) for key, one in schema["properties"].items()}
        must = {key: parts.pop(key) for key in schema.get("required", ())}
        return st.fixed_dictionaries(must, optional=parts)
    if kind == "object":
        inner = schema.get("additionalProperties")
        return st.dictionaries(TEXTS, values(inner) if isinstance(inner, dict) else TEXTS | NUMBERS, max_size=2)
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=2)
    plain = {"string": TEXTS, "integer": st.integers(-2, 4096), "number": NUMBERS, "boolean": st.booleans()}
    return plain[str(kind)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("schema") / "task"
    for name, text in {
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM debian:bookworm\nWORKDIR /app\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    yield root
    shutil.rmtree(root)


def read(folder: Path, data: dict[str, Any]) -> Any:
    (folder / "task.toml").write_text(document(data) or "# nothing\n")
    return load(folder)


def names(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield str(key)
            yield from names(value)
    elif isinstance(data, list):
        for value in data:
            yield from names(value)


FEW = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))


@FEW
@given(values(SCHEMA))
def test_a_valid_file_is_accepted_or_refused_by_name(folder, data):
    (folder / "task.toml").write_text(document(data) or "# nothing\n")
    try:
        task = load(folder)
    except TaskError as error:
        assert any(name and name in error.message for name in names(data)), error.message
    else:
        assert task.digest == task.content_digest()


def leaves(schema: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Every property of the format, by its place, with the models inside lists too."""
    for key, one in resolved(schema).get("properties", {}).items():
        yield (*at, key), one
        for option in one.get("anyOf", [one]):
            for inner in (resolved(option), resolved(option.get("items", {}))):
                for nested in inner.get("anyOf", [inner]):
                    if "properties" in resolved(nested):
                        yield from leaves(nested, (*at, key))


@FEW
@given(values(SCHEMA), st.sampled_from([place for place, _ in leaves(SCHEMA)]), st.data())
def test_an_invalid_file_is_refused(folder, data, place, draw):
    broken: Any = deepcopy(data)
    at = broken
    for key in place[:-1]:
        at = at.setdefault(key, {}) if isinstance(at, dict) else at
        if isinstance(at, list):
            assume(at and isinstance(at[0], dict))
            at = at[0]
    assume(isinstance(at, dict))
    at[place[-1]] = draw.draw(st.sampled_from([True, 7, 1.5, "word", ["word"], [{"x": 1}], {"x": [1]}]))
    assume(not VALIDATOR.is_valid(broken))
    with pytest.raises(TaskError):
        read(folder, broken)


SAMPLES: dict[str, Any] = {
    "schema_version": "1.3",
    "task.version": "7",
    "task.description": "words",
    "task.keywords": ["k"],
    "task.authors": [{"name": "A"}],
    "task.name": "org/other",
    "metadata": {"difficulty": "hard"},
    "source": "somewhere",
    "multi_step_reward_strategy": "final",
    "steps": [{"name": "one"}],
    "artifacts": ["/out"],
    "environment.tpu": {"type": "v4", "topology": "2x2"},
    "environment.mcp_servers": [{"name": "x", "url": "http://x"}],
    "environment.healthcheck": {"command": "true"},
    "environment.allow_internet": True,
    "environment.os": "windows",
    "verifier.environment": {"cpus": 1},
    "verifier.environment_mode": "separate",
    "verifier.collect": [{"command": "true"}],
}
SECTIONS = {"task", "agent", "verifier", "environment", "solution"}
BY_TYPE = {"string": "/x", "integer": 7, "number": 7.0, "boolean": True, "object": {"A": "b"}, "array": ["x"]}


def sample(place: str, schema: dict[str, Any]) -> Any:
    if place in SAMPLES:
        return SAMPLES[place]
    if place.endswith("network_mode"):
        return "public"
    kinds = [resolved(one).get("type") for one in schema.get("anyOf", [schema])]
    return BY_TYPE[next(str(kind) for kind in kinds if kind != "null")]


TOP = [(".".join(at), one) for at, one in leaves(SCHEMA) if len(at) == 1 and at[0] not in SECTIONS]
INSIDE = [(".".join(at), one) for at, one in leaves(SCHEMA) if len(at) == 2 and at[0] in SECTIONS]


@pytest.mark.parametrize(
    ("place", "schema"), [*TOP, *INSIDE], ids=lambda value: value if isinstance(value, str) else ""
)
def test_no_field_is_passed_over_in_silence(folder, place, schema):
    base = {"task": {"name": "org/name"}} if place.startswith("task.") else {}
    plain = read(folder, base)
    data: dict[str, Any] = deepcopy(base)
    section, _, key = place.rpartition(".")
    (data.setdefault(section, {}) if section else data)[key] = sample(place, schema)
    try:
        changed = read(folder, data)
    except TaskError as error:
        assert key in error.message
    else:
        # The version of the format alone says nothing about the task.
        assert changed != plain or place == "schema_version"
    if section in SECTIONS - {"task"}:
        data[section]["no_such_key"] = 1
        with_unknown = {section: {"no_such_key": 1}}
        assert f"{section}.no_such_key" in read(folder, with_unknown).metadata["warnings"]


DEEP: dict[str, Any] = {
    "environment.healthcheck": {"command": "true"},
    "verifier.environment": {"docker_image": "org/verifier:1"},
    "verifier.environment.healthcheck": {"command": "true"},
    "verifier.collect": {"command": "true"},
    "artifacts": {"source": "/out"},
    "steps": {"name": "one"},
    "steps.agent": {},
    "steps.healthcheck": {"command": "true"},
    "steps.artifacts": {"source": "/out"},
    "steps.verifier": {},
    "steps.verifier.collect": {"command": "true"},
    "steps.verifier.environment": {"docker_image": "org/verifier:1"},
}
LISTS = {"verifier.collect", "artifacts", "steps", "steps.artifacts", "steps.verifier.collect"}
NESTED = [(".".join(at), one) for at, one in leaves(SCHEMA) if ".".join(at[:-1]) in DEEP]


def nested(place: str, key: str = "", value: Any = None) -> dict[str, Any]:
    """A file in which the model at `place`, and those it lies in, say what they must, and `key` besides."""
    data: dict[str, Any] = {}
    at, path = data, ""
    for part in place.split("."):
        path = f"{path}.{part}" if path else part
        inner = dict(DEEP.get(path, {}))
        at[part] = [inner] if path in LISTS else inner
        at = inner
    if key:
        at[key] = value
    return data


@pytest.mark.parametrize(("place", "schema"), NESTED, ids=lambda value: value if isinstance(value, str) else "")
def test_no_field_inside_is_passed_over_in_silence(folder, tmp_path, place, schema):
    where, _, key = place.rpartition(".")
    root = shutil.copytree(folder, tmp_path / "task")
    if where.startswith("steps"):
        name = "other" if place == "steps.name" else "one"
        (root / "steps" / name).mkdir(parents=True)
        (root / "steps" / name / "instruction.md").write_text("Do it.\n")
    value = "other" if place == "steps.name" else "/new" if key == "source" else sample(place, schema)
    try:
        changed = read(root, nested(where, key, value))
    except TaskError as error:
        assert key in error.message
        return
    if place != "steps.name":  # a step's name is its folder's, and another would not have been found
        assert changed != read(root, nested(where))


def test_the_sections_are_all_of_the_schema():
    assert {at[0] for at, _ in leaves(SCHEMA)} == SECTIONS | {place for place, _ in TOP}
