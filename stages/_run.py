"""What every working command stands in: the run, podman, leases that stay alive, and a graceful stop."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import click

from lego.rollout.run import Run, open_run
from lego.rollout.scheduler import leases_renewed
from lego.rollout.site import Workshop, open_workshop
from lego.rollout.stopping import Stop, stop_on_signals

if TYPE_CHECKING:
    from lego.config.load import Loaded


def say(text: str) -> None:
    """A line for a person, above the progress bar if there is one: that takes what is printed, not what is echoed."""
    print(text, file=sys.stderr, flush=True)


@asynccontextmanager
async def at_work(loaded: Loaded) -> AsyncIterator[tuple[Run, Workshop, Stop]]:
    """Open everything a working command needs; a command that was stopped ends as interrupted."""
    run = open_run(loaded)
    async with (
        open_workshop(run) as workshop,
        stop_on_signals(say) as stop,
        leases_renewed(run.store),
    ):
        yield run, workshop, stop
    if stop.asked.is_set():
        raise click.Abort
