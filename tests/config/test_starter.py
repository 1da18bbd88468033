import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.config.fields import flat, settings
from lego.config.load import load
from lego.config.schema import Config
from lego.config.source import dotted_name, parse_override
from lego.config.starter import starter

CHOSEN = {"run.name": "mine", "policy.model": "m"}


def test_a_starter_config_loads_and_is_otherwise_the_defaults(tmp_path):
    path = tmp_path / "lego.yaml"
    path.write_text(starter(CHOSEN))
    values = flat(load(path).config)
    assert values == flat(Config()) | CHOSEN


def test_every_line_that_is_commented_out_is_a_setting_at_its_default(tmp_path):
    text = re.sub(r"^( +)# (?=\w+:)", r"\1", starter(CHOSEN), flags=re.MULTILINE)
    text = text.replace("\n# harness:", "\nharness:")
    path = tmp_path / "lego.yaml"
    path.write_text(text)
    loaded = load(path)
    assert flat(loaded.config) == flat(Config()) | CHOSEN
    assert [key for key, origin in loaded.origin.items() if origin == "default"] == []


def test_every_setting_is_explained():
    text = starter(CHOSEN)
    for setting in settings():
        assert setting.doc in text


def test_docs_list_every_setting_with_its_tag():
    text = (Path(__file__).parents[2] / "docs" / "config.md").read_text()
    for setting in settings():
        row = next((line for line in text.splitlines() if line.startswith(f"| `{setting.key}` |")), "")
        assert f"| {setting.tag} |" in row, f"docs/config.md: {setting.key} is missing, or its tag is wrong"
        assert setting.doc.replace("|", "\\|") in row, f"docs/config.md: {setting.key} is explained otherwise"


@given(st.lists(st.one_of(st.integers(0, 99), st.text("abc_-", min_size=1)), min_size=1))
def test_dotted_names_keep_every_part(place):
    name = dotted_name(["x", *place])
    assert re.findall(r"\[\d+\]|[abcx_-]+", name) == ["x", *(f"[{p}]" if isinstance(p, int) else p for p in place)]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=3e-4", 3e-4),
        ("a=1_000", 1000),
        ("a=off", "off"),
        ("a=yes", "yes"),
        ("a=true", True),
        ("a=007", "007"),
        ("a=2026-11-29", "2026-11-29"),
        ("a=1:30", "1:30"),
        ("a=-2", -2),
        ("a=.5", 0.5),
        ("a=b=c", "b=c"),
        ("a=0", 0),
    ],
)
def test_scalars_are_read_as_people_expect(text, value):
    assert parse_override(text) == ("a", value)
