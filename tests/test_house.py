"""The house's order: imports go down only, the pure packages do no input or output, modules stay small."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path.relative_to(ROOT) for part in ("lego", "stages") for path in (ROOT / part).rglob("*.py"))

FLOORS = [
    {"errors", "clock", "metrics", "plain", "processes", "together", "units", "config"},
    {"trajectory", "objective", "policy", "evaluation"},
    {"tasks", "rundb"},
    {"engine", "sandbox", "images", "harness"},
    {"proxy", "verifier"},
    {"rollout", "trainer", "inject"},
    {"monitor", "report", "export", "probes"},
    {"stages"},
]
"""From the ground up: a part imports parts of lower floors."""
FLOOR = {part: number for number, parts in enumerate(FLOORS) for part in parts}
BESIDE = {
    ("config", "errors"), ("config", "units"), ("config", "plain"), ("units", "errors"), ("images", "harness"),
    ("images", "sandbox"), ("rollout", "trainer"), ("monitor", "report"),
}  # fmt: skip
"""Who may import whom on one floor; never both ways."""

PURE = ("trajectory", "objective")
PLAIN = {
    "__future__", "array", "collections", "dataclasses", "enum", "functools", "itertools", "jinja2", "json", "lego",
    "math", "numpy", "operator", "re", "renderers", "torch", "typing",
}  # fmt: skip
"""What a pure package may import: nothing that reads, writes, waits, or knows the time."""
READS_A_FOLDER = Path("lego/trajectory/tokenizer.py")
"""The one module of the pure packages that opens files: a tokenizer's."""
VLLM_PARSERS = Path("lego/trajectory/vllm_reader.py")
"""The one of them that imports vLLM, for its parsers alone."""
TOGETHER = Path("lego/together.py")
LINES = 400


def part_of(name: str) -> str:
    """`rundb` of `lego.rundb.store`; `stages` of all that is there."""
    words = name.split(".")
    return words[0] if words[0] == "stages" else words[1]


def imported(module: Path) -> Iterator[tuple[int, str]]:
    """(line, full dotted name) of everything a module imports, wherever in it, for types only or not."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module}:{node.lineno}: a relative import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def test_every_part_has_a_floor() -> None:
    named = [".".join(path.with_suffix("").parts) for path in MODULES if len(path.parts) > 2 or path.stem != "__init__"]
    parts = {part_of(name) for name in named}
    assert parts == FLOOR.keys()
    assert not {(one, other) for one, other in BESIDE if (other, one) in BESIDE or FLOOR[one] != FLOOR[other]}


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down(module: Path) -> None:
    here = part_of(".".join(module.with_suffix("").parts))
    for line, name in imported(module):
        if name.split(".")[0] not in ("lego", "stages") or name.count(".") == 0:
            continue
        there = part_of(name)
        allowed = there == here or FLOOR.get(there, len(FLOORS)) < FLOOR.get(here, 0) or (here, there) in BESIDE
        assert allowed, f"{module}:{line}: {here} imports {there}"


@pytest.mark.parametrize("module", [path for path in MODULES if path.parts[1] in PURE], ids=str)
def test_pure_packages_do_no_input_or_output(module: Path) -> None:
    if module == READS_A_FOLDER:
        return
    tree = ast.parse((ROOT / module).read_text())
    opened = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in ("open", "print")]
    assert opened == []
    assert {name.split(".")[0] for _, name in imported(module)} <= PLAIN | (
        {"vllm"} if module == VLLM_PARSERS else set()
    )


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_no_group_of_exceptions_comes_out(module: Path) -> None:
    """asyncio.TaskGroup raises one, which is no LegoError: a person would see a traceback."""
    named = [n for n in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(n, ast.Attribute)]
    assert module == TOGETHER or not any(node.attr == "TaskGroup" for node in named)


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_modules_are_small(module: Path) -> None:
    assert len((ROOT / module).read_text().splitlines()) <= LINES


def test_no_tool_has_the_name_of_a_package() -> None:
    """A script's own folder comes first where it imports: `tools/tokenizers.py` once hid the library of that name."""
    names = {path.stem for path in (ROOT / "tools").glob("*.py")}
    installed = {name.split(".")[0] for name in packages_distributions()}
    assert not names & (installed | set(sys.stdlib_module_names))
