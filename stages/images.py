"""`lego images`: what lies in the store, and how it gets to another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from lego.errors import ConfigError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.images.shelf import Moved, Shelf

T = TypeVar("T")

PROPRIETARY = click.option(
    "--with-proprietary", is_flag=True, help="Also those whose maker does not let them be handed on."
)


@click.group()
def command() -> None:
    """List the images in the store, and carry them to machines without a network or through a registry."""


@command.command()
@config_options
def ls(loaded: Loaded, as_json: bool) -> None:
    """List lego's images: kind, size with all layers, when last used, whether this config needs it."""
    wanted = set(_wanted(loaded))
    images = _with_shelf(loaded, lambda shelf: shelf.images())
    if as_json:
        print_json([asdict(image) | {"needed": image.tag in wanted} for image in images])
        return
    for image in images:
        days = (time.time() - image.used) / 86400
        notes = ["needed"] if image.tag in wanted else []
        notes += [] if image.redistributable else ["not to be handed on"]
        size = f"{image.bytes / 1e6:>7.0f} MB"
        click.echo(f"{image.kind:<8} {size}  used {days:5.1f} d ago  {image.tag}  {', '.join(notes)}".rstrip())


@command.command("export")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@PROPRIETARY
@config_options
def export(loaded: Loaded, as_json: bool, archive: Path, with_proprietary: bool) -> None:
    """Write all images that the config needs into ARCHIVE, for a machine without a network.

    Images that may not be handed on (install.redistributable: false) are left out and named.
    """
    tags = _wanted(loaded)
    _tell(_with_shelf(loaded, lambda shelf: shelf.export(tags, archive, proprietary=with_proprietary)), as_json)


@command.command("import")
@click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))
@config_options
def import_(loaded: Loaded, as_json: bool, archive: Path) -> None:
    """Take in what `lego images export` wrote; `lego build-images` then inspects it and builds nothing."""
    _tell(_with_shelf(loaded, lambda shelf: shelf.take_in(archive)), as_json)


@command.command()
@PROPRIETARY
@config_options
def push(loaded: Loaded, as_json: bool, with_proprietary: bool) -> None:
    """Copy all images that the config needs to images.registry."""
    tags, registry = _wanted(loaded), _registry(loaded)
    _tell(_with_shelf(loaded, lambda shelf: shelf.push(tags, registry, proprietary=with_proprietary)), as_json)


@command.command()
@config_options
def pull(loaded: Loaded, as_json: bool) -> None:
    """Fetch from images.registry what the config needs and the store lacks; the rest is left to build."""
    tags, registry = _wanted(loaded), _registry(loaded)
    _tell(_with_shelf(loaded, lambda shelf: shelf.pull(tags, registry)), as_json)


def _registry(loaded: Loaded) -> str:
    registry = loaded.config.images.registry
    if not registry:
        raise ConfigError("images.registry is not set", hint="images.registry=HOST/FOLDER, or dir:FOLDER")
    return registry


def _wanted(loaded: Loaded) -> list[str]:
    """Tags of the images that the config's tasks and harnesses need."""
    from lego.harness.spec import load_spec
    from lego.images.plan import plan
    from lego.tasks.load import load_all

    train, held_out = load_all(loaded.config.tasks)
    tasks = [*train, *held_out]
    names = {*loaded.config.harness, *(task.harness for task in tasks if task.harness)}
    jobs = plan(tasks, [load_spec(name) for name in sorted(names)], loaded.config.images)
    return [job.tag for job in jobs if job.tag]


def _with_shelf(loaded: Loaded, act: Callable[[Shelf], T]) -> T:
    from lego.images.shelf import Shelf
    from lego.rollout.site import podman_settings
    from lego.sandbox.podman import Podman

    with Podman.open(podman_settings(loaded.config)) as podman:
        return act(Shelf(podman))


def _tell(moved: Moved, as_json: bool) -> None:
    if as_json:
        print_json(asdict(moved))
        return
    for tag in moved.tags:
        click.echo(tag)
    click.echo(f"{len(moved.tags)} images", err=True)
    for tag in moved.held_back:
        click.echo(f"left out, since it may not be handed on: {tag}", err=True)
