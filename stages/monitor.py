"""`lego monitor`: watch a run from its database."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import click

from lego.errors import StoreError
from stages._common import with_config

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.monitor.app import Originals
    from lego.rundb.store import Store


@click.command()
@with_config
def command(loaded: Loaded) -> None:
    """Watch a run: rounds, trials, the task grid, curves, and each trial turn by turn.

    Reads only; start and stop it as you like beside running stages. Keys are shown at the foot, ? explains them.
    Works over SSH from 80x24, and without colour (NO_COLOR=1).
    """
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    section = loaded.config.run
    store = Store.open_read_only(run_db(section.dir, section.name))
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise StoreError("monitor needs a terminal", fault="user", hint="lego status and lego report need none")
    # The machine belongs to the run: on a busy one, who looks waits for who works.
    os.nice(10)
    from lego.monitor.app import MonitorApp

    MonitorApp(store, section.name, wanted=loaded.config.loop.rounds, originals=_originals(loaded, store)).run()
    store.close()


def _originals(loaded: Loaded, store: Store) -> Originals:
    """What a task's files were, where the config's tasks say so themselves and are still those of the run; loaded at
    first use."""
    from lego.rundb.views import task_digests

    @cache
    def workspaces() -> dict[str, dict[str, bytes]]:
        from lego.tasks.load import load_all

        recorded = task_digests(store)
        train, held_out = load_all(loaded.config.tasks)
        return {
            task.id: {path: file.data for path, file in task.environment.workspace.items()}
            for task in (*train, *held_out)
            if task.digest == recorded.get(task.id)
        }

    def of(task: str) -> Mapping[str, bytes]:
        return workspaces().get(task, {})

    return of
