"""Taking named tests out of a test file, so that what an agent sees does not hold the tests that tell."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from lego.inject.edits import Source


def without(path: str, data: bytes, names: Collection[str]) -> bytes | None:
    """The file without the functions of those names (`test_x`, or `TestY::test_x`), decorators included.

    A class whose body would be empty keeps a `pass`. None where one of them is not there to be cut: it was made
    at run time, or the file is not Python.
    """
    try:
        source = Source(path, data)
    except SyntaxError:
        return None
    found = dict(_definitions(source.tree.body, ""))
    wanted = {name for name in names if name in found}
    if wanted != set(names):
        return None
    edits: list[tuple[int, int, bytes]] = []
    for name in wanted:
        node, block = found[name]
        assert node.end_lineno is not None
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        start, end = source.whole_lines(first, node.end_lineno)
        goes = {f for f, (_, home) in found.items() if home is block and f in wanted}
        emptied = block is not source.tree.body and len(goes) == len(block)
        indent = data[start : start + node.col_offset]
        edits.append((start, end, indent + b"pass\n" if emptied else b""))
    for start, end, text in sorted(edits, reverse=True):
        data = data[:start] + text + data[end:]
    try:
        ast.parse(data)
    except (SyntaxError, ValueError):
        return None
    return data


Definition = ast.FunctionDef | ast.AsyncFunctionDef


def _definitions(block: list[ast.stmt], scope: str) -> Iterator[tuple[str, tuple[Definition, list[ast.stmt]]]]:
    for node in block:
        if isinstance(node, Definition):
            yield f"{scope}{node.name}", (node, block)
        elif isinstance(node, ast.ClassDef):
            yield from _definitions(node.body, f"{scope}{node.name}::")
