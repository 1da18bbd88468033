"""`lego tasks inject`: from the command line to the search, with its progress."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from lego.errors import LegoError
from stages._common import print_json, progress


async def inject(
    targets: tuple[str, ...], out: Path, count: int, seed: int, jobs: int, requirements: tuple[str, ...],
    config: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Make `count` tasks of each target in `out`; a target that gives none stops none of the others."""
    from lego.config.load import load
    from lego.config.schema import Config
    from lego.inject.run import Made, Shop, Wanted
    from lego.inject.run import inject as make
    from lego.inject.search import Told
    from lego.rollout.site import podman_settings
    from lego.rollout.stopping import stop_on_signals
    from lego.sandbox import reaper
    from lego.sandbox.create import Limits
    from lego.sandbox.podman import Podman
    from lego.units import parse_size
    from stages._run import say

    targets = tuple(dict.fromkeys(targets))
    settings = load(config, ()).config if config else Config()
    sandbox = settings.sandbox
    limits = Limits(
        parse_size(sandbox.memory), sandbox.pids, sandbox.cpus, parse_size(sandbox.disk), parse_size(sandbox.disk)
    )
    made: list[Made] = []
    failed: list[LegoError] = []
    kept: dict[str, int] = {}
    with Podman.open(podman_settings(settings)) as podman:
        await podman.call(reaper.sweep, podman)
        async with stop_on_signals(say) as stop:
            with progress("tasks", count * len(targets), heading=f"{count} tasks of {', '.join(targets)}") as bar:
                for target in targets:

                    def on_told(told: Told, target: str = target) -> None:
                        kept[target] = told.kept
                        detail = f"{target}: {told.decided} of {told.candidates} candidates   {told.newest.reason}"
                        bar.update(sum(kept.values()), detail=detail)

                    shop = Shop(podman, settings.images, limits, out.absolute(), bar.log, on_told)
                    try:
                        one = await stop.or_abandon(make(Wanted(target, count, seed, jobs, requirements), shop))
                        made += [one] if one else []
                    except LegoError as error:
                        if len(targets) == 1 or error.fault == "infra":
                            raise
                        failed.append(error)
                        bar.log(f"{error}" + (f"\n   {error.hint}" if error.hint else ""))
                    if stop.asked.is_set():
                        break
            stopped = stop.asked.is_set()
    if as_json:
        print_json([asdict(one) for one in made])
    else:
        for one in made:
            click.echo(_line(one.name, one.version, len(one.tasks), one.ends, one.tests, one.excluded, one.seconds))
        click.echo(f"{sum(kept.values())} tasks in {out}")
    if stopped:
        raise click.Abort
    if failed or any(len(one.tasks) < count for one in made):
        if not as_json:
            click.echo("fewer than asked for: there are no more candidates, or a target failed", err=True)
        sys.exit(1)


def _line(
    name: str, version: str, tasks: int, ends: dict[str, int], tests: int, excluded: dict[str, str], seconds: float
) -> str:
    rejected = ", ".join(f"{count} {reason}" for reason, count in ends.items() if reason != "kept")
    left_out = f" ({len(excluded)} red or flaky ones left out)" if excluded else ""
    return f"{name} {version}: {tasks} tasks in {seconds:.0f} s, from {tests} tests{left_out}" + (
        f"; not kept: {rejected}" if rejected else ""
    )
