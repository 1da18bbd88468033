"""Writes the help of every command into docs/cli.md, below its marker: `python -m tests.update_cli_docs`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from stages.cli import cli

DOC = Path(__file__).parents[1] / "docs" / "cli.md"
MARKER = "<!-- From here on `python -m tests.update_cli_docs` writes what the commands say of themselves. -->\n"
_WIDTH = 80


def page(current: str) -> str:
    """docs/cli.md as it should be: what stands above the marker, then every command's help."""
    prose, marker, _ = current.partition(MARKER)
    if not marker:
        raise ValueError(f"{DOC.name} has lost its marker: {MARKER.strip()}")
    return prose + marker + "".join(_sections(cli, ["lego"], None))


def _sections(command: click.Command, path: list[str], parent: click.Context | None) -> Iterator[str]:
    # The group's own context settings, with a width that does not depend on the terminal.
    settings = {**cli.context_settings, "terminal_width": _WIDTH, "max_content_width": _WIDTH}
    context = click.Context(command, parent, path[-1], **settings)
    yield f"\n## {' '.join(path)}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _sections(child, [*path, name], context)


if __name__ == "__main__":
    DOC.write_text(page(DOC.read_text(encoding="utf-8")), encoding="utf-8")
