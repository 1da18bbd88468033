"""`lego check`: before a run, probe what it will stand on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import GateError
from lego.rundb.paths import run_db
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.config.schema import Config
    from lego.probes.finding import Finding
    from lego.rollout.run import Run

SUBJECTS = ("machine", "sandbox", "engine")


@click.command()
@click.option(
    "--only", type=click.Choice(SUBJECTS), multiple=True, help="Probe this alone; may be given more than once."
)
@config_options
def command(loaded: Loaded, as_json: bool, only: tuple[str, ...]) -> None:
    """Check the config, the machine, the sandbox, the tasks and the engine, and say what would go wrong.

    Begins no run: what is frozen when a run begins may still be changed afterwards.
    """
    findings = _check(loaded, only or SUBJECTS)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            click.echo(f" {'✓' if finding.ok else '✗'} {finding.subject:<8} {finding.text}")
            if not finding.ok and finding.hint:
                click.echo(f"            {finding.hint}")
    bad = sum(not finding.ok for finding in findings)
    if bad:
        raise GateError(f"{bad} of {len(findings)} checks failed", hint="each line marked ✗ says what to do")


def _check(loaded: Loaded, only: tuple[str, ...]) -> list[Finding]:
    from lego.rollout.run import open_run

    with _without_beginning(loaded) as looked_at:
        return _findings(open_run(looked_at), loaded.config, only)


@contextmanager
def _without_beginning(loaded: Loaded) -> Iterator[Loaded]:
    """The run as it is, or one that is gone afterwards: a config that is only being checked freezes nothing yet."""
    section = loaded.config.run
    if run_db(section.dir, section.name).exists():
        yield loaded
        return
    with tempfile.TemporaryDirectory(prefix="lego-check-") as folder:
        yield replace(loaded, config=replace(loaded.config, run=replace(section, dir=folder)))


def _findings(run: Run, config: Config, only: tuple[str, ...]) -> list[Finding]:
    from lego.probes import engine, machine, sandbox
    from lego.probes.finding import Finding

    findings = [Finding("tasks", True, f"{len(run.tasks)} tasks, harnesses: {', '.join(run.specs)}")]
    if "machine" in only:
        findings += machine.probe(config)
    if "sandbox" in only:
        findings += sandbox.probe(config)
    if "engine" in only:
        findings += uvloop.run(_all(engine.probe(run)))
    return findings


async def _all(findings: AsyncIterator[Finding]) -> list[Finding]:
    return [finding async for finding in findings]
