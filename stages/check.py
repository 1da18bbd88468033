"""`lego check`: before a run, probe what it will stand on."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from lego.errors import GateError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.probes.finding import Finding

SUBJECTS = ("machine", "sandbox", "engine")


@click.command()
@click.option(
    "--only", type=click.Choice(SUBJECTS), multiple=True, help="Probe this alone; may be given more than once."
)
@config_options
def command(loaded: Loaded, as_json: bool, only: tuple[str, ...]) -> None:
    """Check the config, the machine, the sandbox, the tasks and the engine, and say what would go wrong."""
    findings = asyncio.run(_check(loaded, only or SUBJECTS))
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


async def _check(loaded: Loaded, only: tuple[str, ...]) -> list[Finding]:
    from lego.probes import engine, machine, sandbox
    from lego.probes.finding import Finding
    from lego.rollout.run import open_run

    run = open_run(loaded)
    findings = [Finding("tasks", True, f"{len(run.tasks)} tasks, harnesses: {', '.join(run.specs)}")]
    if "machine" in only:
        findings += machine.probe(loaded.config)
    if "sandbox" in only:
        findings += sandbox.probe(loaded.config)
    if "engine" in only:
        findings += [finding async for finding in engine.probe(run)]
    return findings
