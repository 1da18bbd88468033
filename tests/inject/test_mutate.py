"""Mutations: real Python modules, every operator by example, and that each is undone exactly by its patch."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lego.inject.mutate import changes_program, mutations
from lego.inject.patch import unified

MODULES = ("textwrap", "shlex", "fnmatch", "bisect", "graphlib", "string", "colorsys")
SOURCES = {name: Path(inspect.getfile(importlib.import_module(name))).read_bytes() for name in MODULES}
FOUND = {name: mutations(f"lib/{name}.py", data) for name, data in SOURCES.items()}
real = st.sampled_from(MODULES).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(FOUND[name])))


def results(source: str) -> dict[str, set[str]]:
    """Kind to the functions' bodies it gives, for what changes the program."""
    data = source.encode()
    found: dict[str, set[str]] = {}
    for mutation in mutations("m.py", data):
        if changes_program(data, mutation):
            found.setdefault(mutation.kind, set()).add(mutation.apply(data).decode())
    return found


@settings(max_examples=50)
@given(real)
def test_a_mutation_is_another_program_or_said_to_be_none(case):
    name, mutation = case
    data = SOURCES[name]
    after = mutation.apply(data)
    try:
        other = ast.dump(ast.parse(after)) != ast.dump(ast.parse(data))
    except SyntaxError:
        other = False
    assert changes_program(data, mutation) == other


@given(real)
def test_a_mutation_touches_its_own_bytes_alone(case):
    name, mutation = case
    data, after = SOURCES[name], mutation.apply(SOURCES[name])
    assert after.startswith(data[: mutation.start]) and after.endswith(data[mutation.end :])
    assert len(after) == len(data) - (mutation.end - mutation.start) + len(mutation.text)
    first = data[: mutation.start].count(b"\n") + 1
    assert mutation.lines[0] <= first <= max(mutation.lines[1] + 1, data[: mutation.end].count(b"\n") + 1)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=real)
def test_the_patch_undoes_it_exactly(case, tmp_path):
    name, mutation = case
    before, path = SOURCES[name], f"lib/{name}.py"
    after = mutation.apply(before)
    place = tmp_path / path
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(after)
    patch = unified(path, after, before)
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=patch, cwd=tmp_path, check=True)
    assert place.read_bytes() == before


def test_the_same_source_gives_the_same_list():
    assert [mutations(f"lib/{name}.py", data) for name, data in SOURCES.items()] == list(FOUND.values())


def test_most_candidates_are_programs_and_all_kinds_occur():
    some = [(name, mutation) for name in MODULES for mutation in FOUND[name][::10]]
    good = [mutation for name, mutation in some if changes_program(SOURCES[name], mutation)]
    assert len(good) > 0.9 * len(some)
    assert len({mutation.kind for found in FOUND.values() for mutation in found}) >= 18


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("boundary", "return a < b", {"return a <= b"}),
        ("comparison", "return a not in b", {"return a in b"}),
        ("comparison", "return a is not b", {"return a is b"}),
        ("arithmetic", "return (a + 1) * 2", {"return (a - 1) * 2", "return (a + 1) + 2"}),
        ("operand-swap", "return a - b", {"return b - a"}),
        ("logic", "return a and b", {"return a or b"}),
        ("condition-drop", "return a and b", {"return a", "return b"}),
        ("negation", "return not a", {"return a"}),
        ("branch-swap", "return a if c else b", {"return b if c else a"}),
        ("argument-swap", "return f(a,  b)", {"return f(b,  a)"}),
        ("argument-drop", "return f(a, key=b)", {"return f(a)"}),
        ("constant", "return 3", {"return 4", "return 2"}),
        ("constant", "return True", {"return False"}),
        ("off-by-one", "return range(n)", {"return range(n - 1)", "return range(n + 1)", "return range(1, n)"}),
        ("bound-drop", "return a[1:n]", {"return a[:n]", "return a[1:]"}),
        ("twin", "return a.startswith(b)", {"return a.endswith(b)"}),
        ("wrong-return", "return a, b", {"return b, a"}),
        ("wrong-return", "return f(a)", {"return a"}),
        ("step-changed", "a += 1", {"a -= 1"}),
    ],
)
def test_operators_on_one_line(kind, body, expected):
    found = results(f"def go(a, b, c, n, f):\n    {body}\n")
    assert found[kind] == {f"def go(a, b, c, n, f):\n    {one}\n" for one in expected}


def test_operators_on_blocks():
    source = (
        "def go(a):\n    x = []\n    if a:\n        x.append(1)  # why\n    else:\n        x.clear()\n"
        "    for y in x:\n        if y:\n            break\n        y.go()\n    return x\n"
    )
    found = results(source)
    assert source.replace("    else:\n        x.clear()\n", "") in found["branch-removed"]
    assert source.replace("        if y:\n            break\n", "") in found["branch-removed"]
    assert source.replace("        y.go()\n", "") in found["statement-removed"]
    assert source.replace("x.append(1)  # why", "pass  # why") in found["statement-removed"]
    assert source.replace("break", "continue") in found["loop-control"]
    assert source.replace("if a:", "if not (a):") in found["condition-flip"]


def test_what_decides_nothing_is_left_alone():
    source = (
        "LIMIT = 3 < 4\n\n\n@cache(size=1)\ndef go(a: 'int' = 1 + 1) -> 2 < 3:\n    'A note: 1 < 2.'\n"
        "    return f'{a < 3}'\n"
    )
    assert results(source).keys() <= {"wrong-return"}


def test_line_ends_and_encodings_are_kept():
    data = "# coding: latin-1\r\ndef go(a):\r\n    # \xe9\r\n    return a < 3".encode("latin-1")
    boundary = [m for m in mutations("m.py", data) if m.kind == "boundary"]
    assert [m.apply(data) for m in boundary] == [data.replace(b"<", b"<=")]


def test_what_is_not_python_gives_nothing():
    assert mutations("m.py", b"def go(:\n") == [] and mutations("m.py", b"\x00\xff") == []
