"""`lego build-images`: the base, one image a task environment, one runtime image a harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import ImageError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.images.build import ImageResult


@click.command()
@config_options
def command(loaded: Loaded, as_json: bool) -> None:
    """Build the images of the run's tasks and harnesses that are not there yet.

    An image that fails does not stop the others, and its log is named; the exit code is 1 if any failed, and 3 if
    network or machine failed one, so that it is worth trying again.
    """
    results = uvloop.run(_build(loaded, plain=as_json))
    failed = [result for result in results if result.status == "failed"]
    if as_json:
        print_json([asdict(result) | {"log_path": str(result.log_path)} for result in results])
    else:
        for result in results:
            click.echo(line(result))
    if failed:
        raise ImageError(
            f"{len(failed)} of {len(results)} images failed",
            hint="\n".join(f"{result.name}: see {result.log_path}" for result in failed),
            fault="infra" if any(result.fault == "infra" for result in failed) else "task",
        )


async def _build(loaded: Loaded, plain: bool) -> Sequence[ImageResult]:
    from lego.rollout.run import open_run
    from lego.rollout.site import open_workshop
    from stages._building import build_with_progress

    run = open_run(loaded)
    tasks, specs = list(run.tasks.values()), list(run.specs.values())
    async with open_workshop(run) as workshop:
        return await build_with_progress(lambda on_event: workshop.build_images(tasks, specs, on_event), plain=plain)


def line(result: ImageResult) -> str:
    """One image in one line: what it is, what became of it, how long it took, how big it is."""
    if result.status == "failed":
        return f" {result.kind:8} {result.name}  failed: {result.reason}"
    took = f"  {result.seconds:.1f} s" if result.status == "built" else ""
    return f" {result.kind:8} {result.name}  {result.status}{took}  {result.bytes / 1e6:.0f} MB"
