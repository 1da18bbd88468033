"""`lego gc`: remove what no run needs any more."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lego.units import parse_duration
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.rundb.store import Store


@click.command()
@click.option("--images", "with_images", is_flag=True, help="Also remove images that have not been used for long.")
@click.option("--older", metavar="TIME", default="7d", show_default=True, help="With --images: how long is long.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@config_options
def command(loaded: Loaded, as_json: bool, with_images: bool, older: str, dry_run: bool) -> None:
    """Remove half-written checkpoints, experts recorded for rounds that are over, containers of dead workers and killed
    builds and, if asked, images that no command has wanted for a week. Images of this run, and of runs beside it whose
    trials are not all done and verified, stay.

    Nothing that an open round needs is touched; checkpoints go by retention.policies, token data by retention.tokens.
    """
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    database = run_db(loaded.config.run.dir, loaded.config.run.name)
    Store.open_read_only(database).close()  # says so where there is no run, and begins none
    store = Store.open(database)
    removed: dict[str, list[str]] = {
        "checkpoints": _checkpoints(store, loaded, dry_run),
        "tokens": _tokens(store, loaded, dry_run),
        "recorded experts": _routing(store, dry_run),
    }
    removed |= _store(store, loaded, parse_duration(older) if with_images else None, dry_run)
    if not dry_run:
        store.shrink()
    if as_json:
        print_json(removed)
    else:
        word = "would remove" if dry_run else "removed"
        for what, names in removed.items():
            if names:
                click.echo(f"{word} {what}: {', '.join(names[:5])}{f' and {len(names) - 5} more' if names[5:] else ''}")
        if not any(removed.values()):
            click.echo("there is nothing to remove")


def _checkpoints(store: Store, loaded: Loaded, dry_run: bool) -> list[str]:
    """Folders that are no policy's (a killed step's), and policies beyond the retention rule."""
    from lego.rundb import catalogue
    from lego.rundb.paths import run_folder
    from lego.trainer.retention import removable

    folder = run_folder(loaded.config.run.dir, loaded.config.run.name) / "policies"
    # By name, not by path: the run's folder may have been moved since.
    named = {Path(row["path"]).name for row in catalogue.policies(store) if row["removed_at"] is None}
    busy = bool(store.value("SELECT count(*) FROM train_steps WHERE status = 'open' AND lease_until > unixepoch()"))
    stray = [] if busy or not folder.is_dir() else [path for path in sorted(folder.iterdir()) if path.name not in named]
    old = removable(store, loaded.config.retention.policies)
    if not dry_run:
        for row in old:
            catalogue.mark_removed(store, row["version"])
        for path in [*stray, *(Path(row["path"]) for row in old)]:
            shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in stray] + [str(row["version"]) for row in old]


def _tokens(store: Store, loaded: Loaded, dry_run: bool) -> list[str]:
    from lego.rundb import calls, rounds

    if loaded.config.retention.tokens != "drop":
        return []
    closed = [round_ for round_ in rounds.all_rounds(store) if not round_.open and calls.has_tokens(store, round_.id)]
    if not dry_run:
        for round_ in closed:
            calls.drop_tokens(store, round_.id)
    return [f"{round_.kind} round {round_.ordinal}" for round_ in closed]


def _routing(store: Store, dry_run: bool) -> list[str]:
    from lego.rundb import routing

    orphans = routing.orphans(store)
    if not dry_run:
        routing.drop_trials(store, orphans)
    return [f"trial {trial}" for trial in orphans]


def _store(store: Store, loaded: Loaded, older: float | None, dry_run: bool) -> dict[str, list[str]]:
    """Containers of dead workers and, unless `older` is None, images unused for so many seconds that no run needs."""
    from lego.images.scratch import sweep_builds
    from lego.images.shelf import Shelf
    from lego.rollout.site import podman_settings
    from lego.rundb import catalogue
    from lego.sandbox import reaper
    from lego.sandbox.podman import Podman

    with Podman.open(podman_settings(loaded.config)) as podman:
        swept = 0 if dry_run else reaper.sweep(podman).containers
        out = {"containers": [f"{swept} of dead workers"] if swept else []}
        out["containers of killed builds"] = sweep_builds(podman, dry_run=dry_run)
        if older is not None:
            shelf = Shelf(podman)
            kept = {image["tag"] for image in catalogue.images(store)} | _needed_beside(loaded)
            unused = shelf.unused(kept, older)
            out["images"] = [image.tag for image in unused] if dry_run else shelf.remove(unused)
            if not dry_run:
                podman.cli("image", "prune", "--force", check=False)
        return out


def _needed_beside(loaded: Loaded) -> set[str]:
    """Tags of the images of all runs under run.dir that have trials to do or to verify. A run that cannot be read needs
    what it may: then nothing is known, and the error says which it is."""
    from lego.rundb import catalogue, verdicts
    from lego.rundb.store import Store

    tags: set[str] = set()
    for path in sorted(Path(loaded.config.run.dir).glob("*/run.db")):
        with closing(Store.open_read_only(path)) as beside:
            to_do = beside.value("SELECT count(*) FROM trials WHERE status IN ('pending', 'running')")
            if to_do or verdicts.awaited(beside):
                tags |= {image["tag"] for image in catalogue.images(beside)}
    return tags
