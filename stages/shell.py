"""`lego shell TRIAL`: the pristine container with the trial's submission applied."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import uvloop

from stages._common import with_config

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.argument("trial", type=int)
@click.option("--tests", is_flag=True, help="With the hidden tests in /tests, as at verification.")
@click.option("--run", "line", default="", metavar="COMMAND", help="Run one command instead of a shell.")
@with_config
def command(loaded: Loaded, trial: int, tests: bool, line: str) -> None:
    """Open a shell in what TRIAL left: its task's fresh container, sealed as ever, with the submission applied.

    Nothing done there is kept. The exit code is the command's.
    """
    code = uvloop.run(_shell(loaded, trial, line, tests))
    if code:
        raise click.exceptions.Exit(code)


async def _shell(loaded: Loaded, trial: int, line: str, tests: bool) -> int:
    from lego.rollout.run import open_run
    from lego.rollout.shell import open_shell
    from lego.rollout.site import open_workshop

    terminal = not line and sys.stdin.isatty() and sys.stdout.isatty()
    if not line and not terminal:
        raise click.UsageError("a shell needs a terminal; --run COMMAND does without")
    if terminal:
        click.echo(f"trial {trial}, as it left the files; nothing done here is kept", err=True)
    async with open_workshop(open_run(loaded)) as workshop:
        return await open_shell(workshop, trial, line, tests=tests, terminal=terminal)
