"""`lego report`: a run as one HTML file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lego.errors import StoreError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded


@click.command()
@click.option(
    "-o", "--output", metavar="FILE", default="", help="Where to write it. [default: report.html in the run's folder]"
)
@config_options
def command(loaded: Loaded, as_json: bool, output: str) -> None:
    """Write what a run did as one self-contained HTML file: curves, rounds, proof numbers, task grid, config.

    It holds no script, fetches nothing and prints well. Reads only; a running run is reported as far as it is.
    With --json the same data go to standard output and no file is written.
    """
    from lego.report.gather import as_data, gather
    from lego.report.page import page
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    database = run_db(loaded.config.run.dir, loaded.config.run.name)
    store = Store.open_read_only(database)
    report = gather(store, loaded.config.run.name)
    if as_json:
        print_json(as_data(report))
        return
    target = Path(output) if output else database.parent / "report.html"
    _write(target, page(report))
    click.echo(str(target))


def _write(target: Path, text: str) -> None:
    """Whole or not at all."""
    half = target.with_name(f".{target.name}.writing")
    try:
        half.write_text(text, encoding="utf-8")
        os.replace(half, target)
    except OSError as error:
        half.unlink(missing_ok=True)
        raise StoreError(
            f"cannot write {target}: {error.strerror}", fault="user", hint="-o FILE names a place"
        ) from error
