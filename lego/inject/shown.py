"""What of a failing test is shown: it whole up to what failed, or that and what made the values it looks at."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lego.inject.edits import header

_MOST_LINES = 20
_WIDEST = 200
_LEFT_OUT = "# ..."
_EXPECTED = re.compile(r"expect|want|desired|correct|\Aexp\Z", re.I)
_RAISES = frozenset(("raises", "assertRaises", "assertRaisesRegex"))
_Placed = tuple[ast.stmt, tuple[ast.stmt, ...]]
_Block = ast.If | ast.For | ast.While | ast.With | ast.Try | ast.AsyncFor | ast.AsyncWith


@dataclass(frozen=True)
class Shown:
    """`text`: lines of Python. `raises`: an error is due in what failed. `expected`: which side of its `==` says what
    should come out, "left" or "right"; empty where that is not to be seen."""

    text: str
    raises: bool = False
    expected: str = ""


def shown(source: str, line: int, given: Mapping[str, str]) -> Shown | None:
    """What to show of a test function that failed at `line` (from 1) of its source.

    `given`: its parameters' values as Python writes them. None where the source cannot be read so, or what failed
    takes too much room.
    """
    try:
        function = ast.parse(source).body[0]
    except (SyntaxError, ValueError, IndexError):
        return None
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    placed = list(_placed(function.body, ()))
    at = [one for one in placed if _first(one[0]) <= line <= header(one[0])[1]]
    if not at:
        return None
    failing, around = at[-1]
    due = [one for one in (*around, failing) if _expects_error(one)]
    if due:
        failing = due[0]
        around = around[: around.index(failing)] if failing in around else around
    needed = _lines(failing, whole=bool(due) or not isinstance(failing, _Block))
    rows = source.splitlines()
    everything = range(_first(function.body[0]), max(needed) + 1)
    if len(everything) <= _MOST_LINES and all(len(rows[number - 1]) <= _WIDEST for number in everything):
        text = _dedented([rows[number - 1] for number in everything])
        wanted = frozenset(one.id for one in ast.walk(function) if isinstance(one, ast.Name))
    else:
        picked, wanted = _slice(placed, (failing, *around), needed, whole=bool(due))
        text = [_LEFT_OUT, *_dedented([rows[number - 1] for number in sorted(picked)])]
    if isinstance(failing, _Block) and not due:
        text.append(" " * (len(text[-1]) - len(text[-1].lstrip())) + "    ...")
    if len(text) > _MOST_LINES + 2 or any(len(row) > _WIDEST for row in text):
        return None
    values = [f"{name} = {value}" for name, value in given.items() if name in wanted and _is_python(value)]
    text = [*(row for row in values if len(row) <= _WIDEST), *text]
    return Shown("\n".join(text), bool(due), _expected_side(failing, given))


def _slice(
    placed: Sequence[_Placed], failing: Sequence[ast.stmt], needed: frozenset[int], *, whole: bool
) -> tuple[frozenset[int], frozenset[str]]:
    """The lines of what failed, of the blocks around it, and, from there backwards, of what made or changed the values
    that they look at; and the names of these. `failing`: the statement, and the blocks; `whole`: it is a block itself,
    whose lines are all `needed`."""
    picked, wanted = needed, _names(failing[0], whole=whole)
    for block in failing[1:]:
        picked |= _lines(block, whole=False)
        wanted |= _names(block, whole=False)
    for statement, outer in reversed([one for one in placed if one[0].lineno < failing[0].lineno]):
        if not _makes(statement, wanted):
            continue
        more = picked.union(_lines(statement, whole=True), *(_lines(block, whole=False) for block in outer))
        if len(more) > _MOST_LINES:
            break
        picked = more
        if not outer:
            wanted -= _bound(statement)
        wanted = wanted.union(_names(statement, whole=True), *(_names(block, whole=False) for block in outer))
    return picked, wanted


def _dedented(rows: list[str]) -> list[str]:
    margin = min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)
    return [row[margin:].rstrip() for row in rows]


def _is_python(value: str) -> bool:
    try:
        ast.parse(value, mode="eval")
    except (SyntaxError, ValueError):
        return False
    return True


def _placed(block: list[ast.stmt], outer: tuple[ast.stmt, ...]) -> Iterator[_Placed]:
    """Each statement in order, with the blocks around it. Those of an `else`, a handler or the like are left out: the
    first line of their block would say something else."""
    for statement in block:
        yield statement, outer
        if isinstance(statement, _Block):
            yield from _placed(statement.body, (*outer, statement))


def _first(statement: ast.stmt) -> int:
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])


def _lines(statement: ast.stmt, *, whole: bool) -> frozenset[int]:
    """The numbers of a statement's lines, or of its first ones alone, up to the block in it."""
    last = statement.end_lineno if whole else header(statement)[1]
    assert last is not None
    return frozenset(range(_first(statement), last + 1))


def _names(statement: ast.stmt, *, whole: bool) -> frozenset[str]:
    """The names that a statement looks at, or its first lines alone."""
    inner = () if whole else ("body", "orelse", "handlers", "finalbody")
    parts = [value for name, value in ast.iter_fields(statement) if name not in inner]
    nodes = [node for part in parts for node in (part if isinstance(part, list) else [part])]
    used = [one for node in nodes if isinstance(node, ast.AST) for one in ast.walk(node) if isinstance(one, ast.Name)]
    if isinstance(statement, ast.AugAssign):
        return frozenset(one.id for one in used)
    return frozenset(one.id for one in used if isinstance(one.ctx, ast.Load))


def _makes(statement: ast.stmt, wanted: Collection[str]) -> bool:
    """Whether a statement binds or may change one of the wanted names."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        called = statement.value.func
        if getattr(called, "attr", getattr(called, "id", "")).startswith(("assert", "print", "skip")):
            return False
        return not _names(statement, whole=True).isdisjoint(wanted)
    return not _bound(statement).isdisjoint(wanted)


def _bound(statement: ast.stmt) -> frozenset[str]:
    targets: list[ast.expr | None]
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return frozenset((statement.name,))
        case ast.Assign() | ast.Delete():
            targets = [*statement.targets]
        case ast.AnnAssign() | ast.AugAssign():
            targets = [statement.target]
        case ast.With() | ast.AsyncWith():
            targets = [item.optional_vars for item in statement.items]
        case _:
            return frozenset()
    return frozenset(one.id for target in targets if target for one in ast.walk(target) if isinstance(one, ast.Name))


def _expects_error(statement: ast.stmt) -> bool:
    """Whether a statement says that an error is due in it."""
    if isinstance(statement, ast.With):
        calls = [item.context_expr for item in statement.items]
    else:
        calls = [statement.value] if isinstance(statement, ast.Expr) else []
    called = [one.func for one in calls if isinstance(one, ast.Call)]
    return any(getattr(one, "attr", getattr(one, "id", "")) in _RAISES for one in called)


def _expected_side(statement: ast.stmt, given: Collection[str]) -> str:
    match statement:
        case ast.Assert(ast.Compare(left, [ast.Eq()], [right])):
            pass
        case ast.Expr(ast.Call(ast.Attribute(attr="assertEqual"), [left, right, *_])):
            pass
        case _:
            return ""
    known = [name for name, side in (("left", left), ("right", right)) if _is_given(side, given)]
    return known[0] if len(known) == 1 else ""


def _is_given(node: ast.expr, given: Collection[str]) -> bool:
    """Whether an expression was written down or handed in, and so is no result of the code under test."""
    if isinstance(node, ast.Name):
        return node.id in given or bool(_EXPECTED.search(node.id))
    plain = ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.UnaryOp | ast.BinOp | ast.Load
    allowed = plain | ast.operator | ast.unaryop
    return all(isinstance(one, allowed) for one in ast.walk(node))
