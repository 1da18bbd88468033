"""`lego check --harness`: real harnesses through scripted bug fixes, and the proof of what was captured."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import uvloop

from lego.errors import GateError, LegoError
from stages._common import print_json
from stages._run import say

if TYPE_CHECKING:
    from lego.config.schema import Config
    from lego.images.build import ImageResult
    from lego.probes.bench import Bench
    from lego.probes.matrix import Report

_WITHOUT_CONFIG = """
run: {name: check}
policy: {model: tiny, renderer: qwen3, context: 65536}   # over the longest first prompt of a harness, and some turns
sandbox: {memory: 2g, pids: 512, cpus: 2, disk: 1g, timeout: 600s}
tasks: {train: [{source: family, name: off-by-one, count: 1, seed: 1}]}
"""


def shipped() -> list[str]:
    """The names of the harness specs that lego ships."""
    from lego.config.places import harness_specs_dir

    return sorted(path.stem for path in harness_specs_dir().glob("*.yaml"))


def check_harnesses(
    config: Config | None,
    overrides: Sequence[str],
    harnesses: Sequence[str],
    scenarios: Collection[str],
    *,
    table: bool,
    as_json: bool,
) -> None:
    """Put each harness through the scenarios and print what came of it. `config` None makes one up.

    Raises GateError where something does not hold; the logs are kept then, and then alone.
    """
    folder = Path(tempfile.mkdtemp(prefix="lego-check-"))
    keep = False
    try:
        reports = uvloop.run(_check(folder, config or _made_up(folder, overrides), harnesses, scenarios))
        keep = not all(report.ok for report in reports)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    _print(reports, table, as_json)
    if keep:
        failed = sum(not report.ok for report in reports)
        raise GateError(f"{failed} of {len(reports)} checks of harnesses failed", hint=f"runs and logs: {folder}")


def _made_up(folder: Path, overrides: Sequence[str]) -> Config:
    """A config for a run of no consequence, its policy made on the spot."""
    from lego.config.load import load

    file = folder / "check.yaml"
    file.write_text(_WITHOUT_CONFIG, encoding="utf-8")
    config = load(file, overrides).config
    if config.policy.model == "tiny":
        from lego.probes.bench import make_policy

        say("making a policy for the check")
        make_policy(folder / "policy", config.policy.context)
        config = replace(config, policy=replace(config.policy, model=str(folder / "policy")))
    return config


async def _check(folder: Path, config: Config, harnesses: Sequence[str], scenarios: Collection[str]) -> list[Report]:
    from lego.probes.bench import open_bench
    from lego.probes.harness import check
    from lego.rollout.stopping import stop_on_signals

    reports: list[Report] = []
    async with stop_on_signals(say) as stop, open_bench(folder, config, stop, say) as bench:
        images = await stop.or_abandon(_images(bench, harnesses)) or []
        for harness in harnesses:
            if not stop.asked.is_set():
                reports += await check(bench, harness, scenarios, images)
    if stop.asked.is_set():
        raise click.Abort
    return reports


async def _images(bench: Bench, harnesses: Sequence[str]) -> list[ImageResult]:
    from lego.harness.spec import HarnessSpec, load_spec
    from stages._building import build_with_progress

    specs: list[HarnessSpec] = []
    for harness in harnesses:
        try:
            specs.append(load_spec(harness))
        except LegoError:
            continue  # its own row says why
    say(f"images of {', '.join(spec.name for spec in specs)}")
    return await build_with_progress(lambda on_event: bench.build(specs, on_event))


def _print(reports: Sequence[Report], table: bool, as_json: bool) -> None:
    from lego.probes.matrix import markdown, words

    if as_json:
        print_json([report.as_json() for report in reports])
        return
    if table:
        click.echo(markdown(reports))
    for report in reports:
        if not table or not report.ok:
            click.echo("\n".join(words(report)))
