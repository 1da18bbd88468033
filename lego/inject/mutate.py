"""The bugs that are put in: one small change of a function each, in the manner of SWE-smith's procedural bugs.

Every operator looks at one statement or expression and names the byte ranges it would change. Whether that leaves
Python, and another program than before, `changes_program` says; parsing a file anew for each of thousands would take
minutes, and few of them get their turn.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from lego.inject.edits import Mutation, Source, expressions, functions, header, statements

Edit = tuple[int, int, bytes]
"""Start and end byte, and what stands there then."""

_COMPARISONS: Mapping[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Lt: (b"<", b"<="), ast.LtE: (b"<=", b"<"), ast.Gt: (b">", b">="), ast.GtE: (b">=", b">"),
    ast.Eq: (b"==", b"!="), ast.NotEq: (b"!=", b"=="), ast.In: (b"in", b"not in"), ast.NotIn: (b"not in", b"in"),
    ast.Is: (b"is", b"is not"), ast.IsNot: (b"is not", b"is"),
}  # fmt: skip
_BOUNDARIES = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: Mapping[type[ast.operator], tuple[bytes, bytes]] = {
    ast.Add: (b"+", b"-"), ast.Sub: (b"-", b"+"), ast.Mult: (b"*", b"+"), ast.Div: (b"/", b"//"),
    ast.FloorDiv: (b"//", b"/"), ast.Mod: (b"%", b"//"), ast.Pow: (b"**", b"*"), ast.LShift: (b"<<", b">>"),
    ast.RShift: (b">>", b"<<"), ast.BitAnd: (b"&", b"|"), ast.BitOr: (b"|", b"&"),
}  # fmt: skip
_TWINS = {
    "min": "max", "any": "all", "startswith": "endswith", "lstrip": "rstrip", "lower": "upper", "find": "rfind",
    "index": "rindex", "append": "extend", "floor": "ceil", "split": "rsplit", "keys": "values", "ljust": "rjust",
    "partition": "rpartition", "popleft": "pop", "appendleft": "append", "union": "intersection",
}  # fmt: skip
_TWINS |= {other: one for one, other in _TWINS.items() if other not in _TWINS}


def mutations(path: str, data: bytes) -> list[Mutation]:
    """Every mutation of a file's functions, in the order of their places, still to be checked with `changes_program`;
    empty where the file is not Python."""
    try:
        source = Source(path, data)
    except SyntaxError:
        return []
    found: dict[tuple[int, int, bytes], Mutation] = {}
    for scope, function in functions(source.tree):
        for statement, block in statements(function):
            lines = header(statement)
            for kind, (start, end, text) in _of_statement(source, statement, block):
                found.setdefault((start, end, text), Mutation(path, kind, start, end, text, lines, scope))
    return [found[key] for key in sorted(found)]


def changes_program(data: bytes, mutation: Mutation) -> bool:
    """Whether a mutation of a file leaves Python, and not the same program."""
    try:
        return ast.dump(ast.parse(mutation.apply(data))) != ast.dump(ast.parse(data))
    except (SyntaxError, ValueError):
        return False


def _of_statement(source: Source, statement: ast.stmt, block: list[ast.stmt]) -> Iterator[tuple[str, Edit]]:
    for kind, operator in _STATEMENTS.items():
        yield from ((kind, edit) for edit in operator(source, statement, block))
    for expression in expressions(statement):
        for kind, on_expression in _EXPRESSIONS.items():
            yield from ((kind, edit) for edit in on_expression(source, expression))


# --- expressions -----------------------------------------------------------------------------------------------


def _between(source: Source, left: ast.expr, right: ast.expr, old: bytes, new: bytes) -> Iterator[Edit]:
    """Replace the operator that stands between two operands, where nothing else that looks like it does."""
    start, end = source.span(left)[1], source.span(right)[0]
    gap = source.data[start:end]
    words = old.split()
    at = gap.find(words[0])
    if b"#" in gap or at < 0:
        return
    last = gap.find(words[-1], at + (len(words[0]) if len(words) > 1 else 0))
    yield start + at, start + last + len(words[-1]), new


def _compare(source: Source, node: ast.expr, boundary: bool) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        for left, operator, right in zip(operands, node.ops, operands[1:], strict=False):
            if isinstance(operator, _BOUNDARIES) == boundary:
                yield from _between(source, left, right, *_COMPARISONS[type(operator)])


def _boundary(source: Source, node: ast.expr) -> Iterator[Edit]:
    return _compare(source, node, True)


def _comparison(source: Source, node: ast.expr) -> Iterator[Edit]:
    return _compare(source, node, False)


def _arithmetic(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _is_text(node.left):
        yield from _between(source, node.left, node.right, *_ARITHMETIC[type(node.op)])


def _swapped_operands(source: Source, node: ast.expr) -> Iterator[Edit]:
    ordered = ast.Sub | ast.Div | ast.FloorDiv | ast.Mod | ast.Add
    if isinstance(node, ast.BinOp) and isinstance(node.op, ordered) and not _is_text(node.left):
        yield from _swap(source, node.left, node.right)


def _logic(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.BoolOp):
        words = (b"and", b"or") if isinstance(node.op, ast.And) else (b"or", b"and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            yield from _between(source, left, right, *words)


def _dropped_condition(source: Source, node: ast.expr) -> Iterator[Edit]:
    """`a and b` becomes `a`, or `b`."""
    if isinstance(node, ast.BoolOp):
        start, end = source.span(node)
        yield source.span(node.values[-2])[1], end, b""
        yield start, source.span(node.values[1])[0], b""


def _negation(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield source.span(node)[0], source.span(node.operand)[0], b""
    elif isinstance(node, ast.IfExp):
        start, end = source.span(node.test)
        yield start, end, b"not (" + source.data[start:end] + b")"


def _swapped_branches(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.IfExp):
        yield from _swap(source, node.body, node.orelse)


def _swapped_arguments(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.Call):
        for one, other in zip(node.args, node.args[1:], strict=False):
            if not isinstance(one, ast.Starred) and not isinstance(other, ast.Starred):
                yield from _swap(source, one, other)


def _dropped_argument(source: Source, node: ast.expr) -> Iterator[Edit]:
    """The last of several arguments, or a named one."""
    if isinstance(node, ast.Call):
        given: list[ast.expr | ast.keyword] = sorted([*node.args, *node.keywords], key=lambda one: source.span(one))
        for before, last in zip(given, given[1:], strict=False):
            if isinstance(last, ast.keyword) or last is given[-1]:
                yield source.span(before)[1], source.span(last)[1], b""


def _constant(source: Source, node: ast.expr) -> Iterator[Edit]:
    if not isinstance(node, ast.Constant):
        return
    start, end = source.span(node)
    if isinstance(node.value, bool):
        yield start, end, b"False" if node.value else b"True"
    elif isinstance(node.value, int):
        yield start, end, str(node.value + 1).encode()
        if node.value > 0:
            yield start, end, str(node.value - 1).encode()


def _off_by_one(source: Source, node: ast.expr) -> Iterator[Edit]:
    """Ranges and slices that begin or end one further on or short."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range" and node.args:
        start, end = source.span(node.args[0] if len(node.args) == 1 else node.args[1])
        yield end, end, b" - 1"
        yield end, end, b" + 1"
        if len(node.args) == 1:
            yield start, start, b"1, "
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for bound in (node.slice.lower, node.slice.upper):
            if bound is not None and not isinstance(bound, ast.Constant | ast.UnaryOp):
                end = source.span(bound)[1]
                yield end, end, b" + 1"
                yield end, end, b" - 1"


def _dropped_bound(source: Source, node: ast.expr) -> Iterator[Edit]:
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        for bound in (node.slice.lower, node.slice.upper):
            if bound is not None:
                yield *source.span(bound), b""


def _twin(source: Source, node: ast.expr) -> Iterator[Edit]:
    """A function that is called in the place of its opposite."""
    if isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _TWINS:
            end = source.span(node.func)[1]
            yield end - len(name), end, _TWINS[name].encode()


def _swap(source: Source, one: ast.expr, other: ast.expr) -> Iterator[Edit]:
    (start, middle), (further, end) = source.span(one), source.span(other)
    if middle <= further and source.text(one) != source.text(other):
        yield start, end, source.text(other) + source.data[middle:further] + source.text(one)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


# --- statements ------------------------------------------------------------------------------------------------


def _negated_condition(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.UnaryOp):
        start, end = source.span(node.test)
        yield start, end, b"not (" + source.data[start:end] + b")"


def _removed_branch(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    """An `if` without alternative goes; of one with an alternative, the alternative does."""
    if not isinstance(node, ast.If):
        return
    assert node.end_lineno is not None
    is_elif = source.data[source.span(node)[0] :].startswith(b"elif")
    if not node.orelse:
        if is_elif or (len(block) > 1 and source.alone(node)):
            yield *source.whole_lines(node.lineno, node.end_lineno), b""
    elif not is_elif:
        body_end = node.body[-1].end_lineno
        assert body_end is not None
        yield *source.whole_lines(body_end + 1, node.end_lineno), b""


def _removed_statement(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    does = isinstance(node, ast.AugAssign | ast.Delete | ast.Raise)
    does = does or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    does = does or (isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple))
    if does and source.alone(node):
        assert node.end_lineno is not None
        start, end = source.span(node)
        if len(block) > 1:
            yield *source.whole_lines(node.lineno, node.end_lineno), b""
        else:
            yield start, end, b"pass"


def _reassigned(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    """`x = f(x)` where x already has a value: the step is left out."""
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and source.alone(node):
        name = node.targets[0].id
        used = {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
        if name in used and len(block) > 1:
            assert node.end_lineno is not None
            yield *source.whole_lines(node.lineno, node.end_lineno), b""


def _wrong_return(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    if not isinstance(node, ast.Return) or node.value is None:
        return
    value = node.value
    start, end = source.span(value)
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:
        yield from _swap(source, value.elts[0], value.elts[1])
    elif isinstance(value, ast.Compare | ast.BoolOp):
        yield start, end, b"not (" + source.data[start:end] + b")"
    elif isinstance(value, ast.Call):
        inner = [arg for arg in value.args if isinstance(arg, ast.Name)]
        if inner:
            yield start, end, source.text(inner[0])
    elif not (isinstance(value, ast.Constant) and value.value is None):
        yield start, end, b"None"


def _changed_step(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    """`+=` and its like."""
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        old, new = _ARITHMETIC[type(node.op)]
        yield from _between(source, node.target, node.value, old + b"=", new + b"=")


def _loop_control(source: Source, node: ast.stmt, block: list[ast.stmt]) -> Iterator[Edit]:
    if isinstance(node, ast.Break | ast.Continue):
        yield *source.span(node), b"continue" if isinstance(node, ast.Break) else b"break"


_EXPRESSIONS: Mapping[str, Callable[[Source, ast.expr], Iterator[Edit]]] = {
    "boundary": _boundary,
    "comparison": _comparison,
    "arithmetic": _arithmetic,
    "operand-swap": _swapped_operands,
    "logic": _logic,
    "condition-drop": _dropped_condition,
    "negation": _negation,
    "branch-swap": _swapped_branches,
    "argument-swap": _swapped_arguments,
    "argument-drop": _dropped_argument,
    "constant": _constant,
    "off-by-one": _off_by_one,
    "bound-drop": _dropped_bound,
    "twin": _twin,
}
_STATEMENTS: Mapping[str, Callable[[Source, ast.stmt, list[ast.stmt]], Iterator[Edit]]] = {
    "condition-flip": _negated_condition,
    "branch-removed": _removed_branch,
    "statement-removed": _removed_statement,
    "step-left-out": _reassigned,
    "wrong-return": _wrong_return,
    "step-changed": _changed_step,
    "loop-control": _loop_control,
}
