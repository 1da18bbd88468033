"""One harness, the real and unmodified binary, driven through scripted bug fixes in real sandboxes, and proven."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any

from lego.config.load import Loaded
from lego.config.schema import Config, RunSection
from lego.engine.forced import ForcedEngine
from lego.errors import LegoError
from lego.harness.spec import HarnessSpec, load_spec
from lego.images import recipes
from lego.images.build import ImageResult
from lego.probes.bench import Bench
from lego.probes.matrix import Report, must_hold
from lego.probes.proof import Captured, capture
from lego.probes.scenarios import MAX_OUTPUT, SCENARIOS, TASKS, Scenario
from lego.proxy.app import Proxy
from lego.rollout.run import Run, open_run
from lego.rollout.scheduler import leases_renewed
from lego.rollout.settings import RoundSettings, settings_for
from lego.rollout.site import Site, Workshop
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import calls, rounds, trial_view, trials
from lego.rundb.rounds import Round
from lego.rundb.store import Row
from lego.trainer.assemble import cut_trial

_BOUND = {"float32": 1e-4, "bfloat16": 0.3}
"""Largest |log p| difference between forcing and recomputation that is arithmetic and not another context."""
_TURNS = 40
_TRIAL = 1
"""The one trial of its run."""


async def check(bench: Bench, harness: str, scenarios: Collection[str], images: Sequence[ImageResult]) -> list[Report]:
    """One report a scenario that applies to the harness, in the order of SCENARIOS; fewer after a stop.

    harness: a shipped spec's name or the path of a YAML file. images: what building them gave.
    Never raises an error of lego's: what cannot be done is a report that says why.
    """
    try:
        spec = load_spec(harness)
    except LegoError as error:
        return [Report(harness, "", "", failures=(_words(error),))]
    version = next(iter((*spec.install.pip.values(), *spec.install.npm.values())), "")
    lacking = _lacking(spec, bench.config, images)
    if lacking:
        return [Report(spec.name, version, "", failures=lacking)]
    reports: list[Report] = []
    plain: Captured | None = None
    for scenario in (s for s in SCENARIOS if s.applies(spec) and s.name in _with_needed(scenarios)):
        blank = Report(spec.name, version, scenario.name)
        if scenario.context and (plain is None or not plain.calls):
            reports.append(replace(blank, failures=("not run: nothing was captured in the plain scenario",)))
            continue
        bench.tell(f" {spec.name} · {scenario.name}: {scenario.about}")
        report = await _Attempt(bench, harness, spec, scenario, plain).report(blank)
        if bench.stop.asked.is_set():
            break
        reports.append(report)
        bench.tell("   " + ("; ".join(report.failures) or f"holds ({report.seconds:.0f} s)"))
        plain = report.captured if scenario.name == "plain" else plain
    return reports


def _lacking(spec: HarnessSpec, config: Config, images: Sequence[ImageResult]) -> tuple[str, ...]:
    """What the harness cannot run without and does not build here."""
    own = recipes.runtime_tag(spec, config.images)
    return tuple(
        f"the {image.kind} image {image.name} cannot be built: {image.reason} (log: {image.log_path})"
        for image in images
        if image.status == "failed" and (image.kind == "task" or image.tag == own)
    )


def _with_needed(names: Collection[str]) -> set[str]:
    """The scenarios asked for, and the plain one where another is measured by it."""
    return set(names) | {"plain" for s in SCENARIOS if s.context and s.name in names}


def _words(error: LegoError) -> str:
    return f"{error}" + (f" ({error.hint})" if error.hint else "")


@dataclass(frozen=True)
class _Attempt:
    """One scenario in one harness: a run of its own, of one trial."""

    bench: Bench
    harness: str
    spec: HarnessSpec
    scenario: Scenario
    plain: Captured | None

    @property
    def name(self) -> str:
        return f"{self.spec.name}-{self.scenario.name}"

    async def report(self, blank: Report) -> Report:
        began = time.monotonic()
        forced = ForcedEngine(self.bench.engine, self.scenario.aside(self.bench.rendering))
        try:
            run = open_run(Loaded(self._config(), {}, self.bench.folder))
        except LegoError as error:
            return replace(blank, failures=(_words(error),))
        problem = ""
        try:
            await self._run(run, self._round(run), forced)
        except LegoError as error:
            problem = _words(error)
        try:
            report = await self._judged(run, forced, problem, blank)
        except LegoError as error:
            report = replace(blank, failures=(_words(error),))
        finally:
            run.store.close()
        return replace(report, seconds=time.monotonic() - began)

    def _config(self) -> Config:
        config = self.bench.config
        context = config.policy.context
        if self.scenario.context and self.plain:
            context = min(context, self.scenario.context(self.plain))
        rollout = replace(
            config.rollout, max_turns=_TURNS, max_output_tokens=MAX_OUTPUT, max_total_tokens=0, temperature=1.0,
            max_attempts=1, concurrency=1,
        )  # fmt: skip
        return replace(
            config,
            run=RunSection(name=self.name, seed=config.run.seed, dir=str(self.bench.folder)),
            policy=replace(config.policy, context=context),
            tasks=TASKS,
            harness={self.harness: 1.0},
            rollout=rollout,
        )

    def _round(self, run: Run) -> Round:
        settings: RoundSettings = replace(settings_for(run.config, "train"), sampler="script", samples=1)
        return rounds.open_round(
            run.store, "eval", ordinal=1, policy_version=run.newest_policy().version,
            tasks=[(next(iter(run.tasks)), self.harness)], samples=1, settings=settings.as_dict(),
        )  # fmt: skip

    async def _run(self, run: Run, round_: Round, forced: ForcedEngine) -> None:
        """The trial and its verification. Raises what hinders them."""
        bench = self.bench
        async with Proxy(forced, bench.rendering) as proxy, leases_renewed(run.store):
            site = Site(
                run, round_, RoundSettings.of(round_.settings), bench.podman, forced, bench.rendering, proxy, {},
                script=self.scenario.script,
            )  # fmt: skip
            await run_trials(site, bench.stop, lambda: None)
            if not bench.stop.asked.is_set():
                async with AsyncExitStack() as stack:
                    workshop = Workshop(run, bench.podman, stack)
                    await run_verifications(workshop, round_, bench.stop, lambda: None)

    async def _judged(self, run: Run, forced: ForcedEngine, problem: str, blank: Report) -> Report:
        """What was captured, held against what must hold. The log is written whatever came of the trial."""
        trial = trials.trial(run.store, _TRIAL)
        rows = calls.of_trial(run.store, _TRIAL)
        if trial is None:
            return replace(blank, failures=(problem or "no trial was begun",))
        view = trial_view.gather(run.store, _TRIAL)
        blank = replace(blank, log=self._log(view), outcome=view["verdict"]["outcome"] if view["verdict"] else "")
        if not any(row["kind"] != "rejected" for row in rows):
            return replace(blank, failures=(trial["reason"] or problem or "no call was recorded",))
        given = {int(request.rpartition("/")[2]): said for request, said in forced.given.items()}
        cut = cut_trial(run.store, _TRIAL, "script")
        captured = await asyncio.to_thread(capture, rows, cut, given, self.bench.trainer)
        failures = self._unlike_planned(run, trial, blank.outcome, captured)
        failures += must_hold(captured, _BOUND[self.bench.config.engine.dtype])
        return replace(blank, captured=captured, failures=tuple(failures))

    def _unlike_planned(self, run: Run, trial: Row, outcome: str, captured: Captured) -> list[str]:
        """How the trial ended otherwise than the scenario means it to."""
        if trial["status"] != "finished":
            return [trial["reason"] or f"the trial ended as {trial['status']}"]
        wrong = []
        turns = len(self.scenario.replies(next(iter(run.tasks.values())), self.spec)) + self.spec.script.submits
        if outcome != "passed":
            wrong.append(f"the scripted bug fix was not solved: {outcome or 'no verdict'}")
        if self.scenario.whole and captured.calls < turns:
            wrong.append(f"the harness took {captured.calls} of the script's {turns} turns")
        if self.scenario.whole and (trial["ending"] != "exit" or trial["exit_code"] not in self.spec.done.ok):
            wrong.append(f"the harness ended by {trial['ending']}, exit code {trial['exit_code']}")
        missed = self.scenario.happened(captured)
        return [*wrong, missed] if missed else wrong

    def _log(self, view: dict[str, Any]) -> str:
        """Write everything about the trial beside its run: each turn as a line of JSON, then what was printed."""
        path = self.bench.folder / f"{self.name}.log"
        head = {key: value for key, value in view.items() if key not in ("turns", "output", "log")}
        lines = [json.dumps(part, ensure_ascii=False) for part in (head, *view["turns"])]
        lines += ["--- what the harness printed ---", view["output"], "--- what the tests printed ---", view["log"]]
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)
