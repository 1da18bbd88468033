"""Mutations of Python source as exact byte ranges, so that everything around them keeps its formatting."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Put `text` in the place of the bytes `start` to `end` of the file `path`.

    `kind` names the operator that made it. `lines` are the first and last line (from 1) of the statement it is in,
    whose execution shows that a test gets there. `scope` is the dotted name of the function or method around it.
    """

    path: str
    kind: str
    start: int
    end: int
    text: bytes
    lines: tuple[int, int]
    scope: str

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text + source[self.end :]


class Source:
    """One file: its bytes, its tree, and where its nodes are."""

    def __init__(self, path: str, data: bytes) -> None:
        """Raises SyntaxError (also for undecodable bytes) where the file is not Python of this interpreter."""
        self.path = path
        self.data = data
        try:
            self.tree = ast.parse(data)
        except ValueError as error:
            raise SyntaxError(str(error)) from error
        self._starts = [0]
        for line in data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """The byte offset of a line (from 1) and a column in bytes, as `ast` counts them."""
        return self._starts[line - 1] + column

    def span(self, node: ast.expr | ast.stmt | ast.keyword) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)

    def text(self, node: ast.expr | ast.stmt | ast.keyword) -> bytes:
        start, end = self.span(node)
        return self.data[start:end]

    def whole_lines(self, first: int, last: int) -> tuple[int, int]:
        """The byte range of lines `first` to `last`, their line ends included."""
        return self._starts[first - 1], self._starts[last]

    def alone(self, node: ast.stmt) -> bool:
        """Whether a statement has its lines for itself: nothing before it, and nothing but a comment after it."""
        assert node.end_lineno is not None
        start, end = self.span(node)
        first, last = self.whole_lines(node.lineno, node.end_lineno)
        after = self.data[end:last].strip()
        return not self.data[first:start].strip() and (not after or after.startswith(b"#"))


def functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method with its dotted name, outer ones first."""

    def visit(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{scope}.{child.name}" if scope else child.name
                yield name, child
                yield from visit(child, name)
            elif isinstance(child, ast.ClassDef):
                yield from visit(child, f"{scope}.{child.name}" if scope else child.name)
            else:
                yield from visit(child, scope)

    return visit(tree, "")


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements directly below a node."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


def statements(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """Each statement of a function with the block it stands in; not those of functions and classes inside it."""

    def visit(node: ast.AST) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
        for block in blocks(node):
            for statement in block:
                yield statement, block
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from visit(statement)

    return visit(function)


def expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions that a statement evaluates itself: not its blocks', not annotations, and nothing inside an
    f-string, whose positions are not told before Python 3.12."""

    def below(node: ast.AST) -> Iterator[ast.expr]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_comment"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt | ast.JoinedStr | ast.excepthandler | ast.match_case):
                    continue
                if isinstance(child, ast.expr):
                    yield child
                if isinstance(child, ast.AST):
                    yield from below(child)

    if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield from below(statement)


def header(statement: ast.stmt) -> tuple[int, int]:
    """First and last line of a statement itself, without the blocks it holds."""
    assert statement.end_lineno is not None
    inner = [block[0].lineno for block in blocks(statement)]
    return statement.lineno, max(statement.lineno, min(inner) - 1) if inner else statement.end_lineno
