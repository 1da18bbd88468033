"""`lego check`: before a run, probe what it will stand on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import ConfigError, GateError
from lego.rundb.paths import run_db
from stages._common import DEFAULT_CONFIG, optional_config_options, overrides_of, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.config.schema import Config
    from lego.probes.finding import Finding
    from lego.rollout.run import Run

SUBJECTS = ("machine", "sandbox", "engine")
SCENARIOS = ("plain", "overflow", "rough")


@click.command()
@click.option(
    "--only", type=click.Choice(SUBJECTS), multiple=True, help="Probe this alone; may be given more than once."
)
@click.option(
    "--harness",
    "harnesses",
    multiple=True,
    metavar="NAME",
    help="Drive this harness, a shipped one or a YAML file, through scripted bug fixes and prove what is captured; "
    "may be given more than once.",
)
@click.option("--all-harnesses", is_flag=True, help="The same for every harness that lego ships.")
@click.option(
    "--scenario",
    "scenarios",
    type=click.Choice(SCENARIOS),
    multiple=True,
    help="With --harness: this scenario alone; may be given more than once. [default: all that apply]",
)
@click.option("--table", is_flag=True, help="With --harness: one Markdown table for all.")
@optional_config_options
@click.pass_context
def command(
    ctx: click.Context,
    loaded: Loaded | None,
    as_json: bool,
    only: tuple[str, ...],
    harnesses: tuple[str, ...],
    all_harnesses: bool,
    scenarios: tuple[str, ...],
    table: bool,
) -> None:
    """Check the config, the machine, the sandbox, the tasks and the engine, and say what would go wrong.

    With --harness: instead drive real harnesses through scripted bug fixes, on the config's newest policy or, without
    a config, on one made on the spot. docs/harnesses.md says what each number means.

    Begins no run: what is frozen when a run begins may still be changed afterwards.
    """
    if harnesses or all_harnesses:
        from lego.harness.spec import load_spec
        from stages._check_harness import check_harnesses, shipped

        for name in harnesses:
            load_spec(name)  # a name that is not one is told at once
        chosen = list(dict.fromkeys([*harnesses, *(shipped() if all_harnesses else ())]))
        with _policy_of(loaded) as config:
            check_harnesses(config, overrides_of(ctx), chosen, scenarios or SCENARIOS, table=table, as_json=as_json)
        return
    if table or scenarios:
        raise click.UsageError("--table and --scenario go with --harness or --all-harnesses")
    if loaded is None:
        raise ConfigError("no config given", hint=f"-c CONFIG names one; `lego init` writes {DEFAULT_CONFIG}")
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


@contextmanager
def _policy_of(loaded: Loaded | None) -> Iterator[Config | None]:
    """The config, its policy.model the folder of the run's newest policy."""
    from lego.rollout.run import open_run

    if loaded is None:
        yield None
        return
    with _without_beginning(loaded) as looked_at:
        model = open_run(looked_at).newest_policy().path
        yield replace(loaded.config, policy=replace(loaded.config.policy, model=model))


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
