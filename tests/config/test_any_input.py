"""Whatever stands in a config: its settings, or one line that says where and what is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lego.config.fields import resolved
from lego.config.fields import settings as all_settings
from lego.config.load import load
from lego.config.schema import Config
from lego.errors import ConfigError
from stages.cli import run
from tests._anything import ANYTHING, TEXTS, spoilt

MANY = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

WHOLE = resolved(Config())
WHOLE["run"]["name"], WHOLE["policy"]["model"] = "one", "tiny"
WHOLE["tasks"] = {
    "train": [{"source": "harbor", "path": "a", "options": {"host_env": ["A"]}, "count": 2, "only": "f"}],
    "eval": [{"source": "family", "name": "off-by-one", "seed": 2, "count": 3, "options": {"random_fix_rate": 0.5}}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


def told(path: Path, *overrides: str) -> None:
    try:
        loaded = load(path, overrides)
    except ConfigError as error:
        assert error.message and "\n" not in error.message, error.message[:500]
        assert error.fault == "user" and len(error.message) < 4000 and error.message.encode()
        return
    assert run(["config", "show", "-c", str(path), *overrides]) == 0
    assert json.dumps(resolved(loaded.config), allow_nan=False)


@MANY
@given(spoilt(WHOLE))
@example(WHOLE | {"sandbox": {"cpus": 10**400}})
def test_values_of_any_kind_at_any_key(folder: Path, capsys: pytest.CaptureFixture[str], data: Any) -> None:
    (folder / "any.yaml").write_text(yaml.safe_dump(data, sort_keys=False))
    told(folder / "any.yaml")
    capsys.readouterr()


KEYS = st.sampled_from([setting.key for setting in all_settings()])


@MANY
@given(KEYS, st.sampled_from(["", ".x", "[0]", "[9]", "[0].options", ".0", "[", ".."]), ANYTHING | TEXTS)
@example("sandbox.cpus", "", 10**400)
@example("tasks.train", "[0]", "${tasks.train}")
@example("run.name", "", "${run.name}")
@example("run.name", "", "${oc.env:NO_SUCH_VARIABLE_HERE}")
@example("images.base_map", "", {"a": "\0"})
def test_overrides_of_any_kind(
    folder: Path, capsys: pytest.CaptureFixture[str], key: str, more: str, value: Any
) -> None:
    (folder / "sound.yaml").write_text(yaml.safe_dump(WHOLE, sort_keys=False))
    text = value if isinstance(value, str) else json.dumps(value)
    told(folder / "sound.yaml", f"{key}{more}={text}")
    capsys.readouterr()


@pytest.mark.parametrize(
    "text",
    [
        "run: " + "[" * 2_000,
        "run: {seed: " + "9" * 5000 + "}",
        "run: &a [*a]",
        "run: &a {name: *a}",
        "a: *nothing",
        "? [a]\n: b",
        "run: !!int x",
        "run: !!float x",
        "run: !!bool x",
        "run: !!timestamp x",
        "run: !!binary '***'",
        "run: !!set {a}",
        "run: !!python/object:os.system x",
        "run: {<<: 3}",
        "run: {<<: [{name: b}], 1: 2}",
        "run: {seed: 0x1, name: 2020-01-01}",
        'run: {name: "\\0"}',
        'run: {name: "\\uD800"}',
        "run:\n\tname: x",
        "--- a\n--- b",
        "%YAML 3.0\n---\na: b",
        "\ufeffrun: {}",
        "run: {name: a, seed: .inf}",
        "run: {name: !!str 3}",
        "null: 1",
        "1: {2: 3}",
        "run: {name: [}",
        "tasks: {train: [null]}",
        "tasks: {train: [{options: {1: {2020: !!binary aGk=}}}]}",
        "tasks: {train: [{options: !!omap [a: b]}]}",
    ],
)
def test_yaml_of_any_kind(folder: Path, text: str) -> None:
    (folder / "odd.yaml").write_text(text)
    told(folder / "odd.yaml")


@pytest.mark.parametrize("data", [b"\xff", b"\x00", b"\xfe\xffr", "run: {name: é}".encode("utf-16")])
def test_bytes_of_any_kind(folder: Path, data: bytes) -> None:
    (folder / "bytes.yaml").write_bytes(data)
    told(folder / "bytes.yaml")
