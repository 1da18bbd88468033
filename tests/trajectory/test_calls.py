"""Readers of one call's text."""

from __future__ import annotations

import pytest

from lego.trajectory.calls import HermesReader, string_argument
from lego.trajectory.messages import Tool


def tool(properties: dict, required: list[str]) -> Tool:
    return Tool("t", "", {"type": "object", "properties": properties, "required": required})


@pytest.mark.parametrize(
    ("known", "name"),
    [
        (None, "command"),
        (Tool("t"), None),
        (tool({"n": {"type": "integer"}}, ["n"]), None),
        (tool({"a": {"type": "string"}, "b": {"type": "string"}}, ["b"]), "b"),
        (tool({"n": {"type": "integer"}, "a": {"type": "string"}}, ["n"]), "a"),
    ],
)
def test_the_string_argument_of_a_tool(known: Tool | None, name: str | None) -> None:
    assert string_argument(known) == name


@pytest.mark.parametrize(
    ("text", "arguments", "fault"),
    [
        ('{"name": "b", "arguments": {"a": "}\\"{"}}', '{"a": "}\\"{"}', ""),
        ('{"name": "b", "arguments": [1, [2]]}', "[1, [2]]", ""),
        ('{"name": "b", "arguments": "x}"}', '"x}"', ""),
        ('{"name": "b", "arguments": -1.5e3 }', "-1.5e3", ""),
        ('{"name": "b", "arguments": {}, "arguments": {"a": 1}}', "{}", "invalid JSON"),
        ('{"name": "b", "arguments": {}} trailing', "{}", "invalid JSON"),
        ('{"name": "b", "arguments": ', "", "invalid JSON"),
    ],
)
def test_arguments_end_where_the_json_value_ends(text: str, arguments: str, fault: str) -> None:
    for size in (1, 3, len(text)):
        reader = HermesReader({})
        said = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
        last, found = reader.end(closed=True)
        assert [piece.name for piece in [*said, last] if piece.name is not None] == ["b"]
        assert "".join(piece.arguments for piece in [*said, last]) == arguments
        assert found == fault


def test_a_name_that_never_comes_is_no_call() -> None:
    reader = HermesReader({})
    assert reader.feed('{"name": "' + "x" * 5000).name is None
    assert reader.end(closed=False)[1] == "invalid JSON" and not reader.named
