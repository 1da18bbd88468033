"""The two kinds of leased work of a round: its trials, and their verification."""

from __future__ import annotations

from collections.abc import Callable

from lego.rollout.health import refuse_hopeless_trials, refuse_hopeless_verifications
from lego.rollout.scheduler import drain
from lego.rollout.site import Site, Workshop
from lego.rollout.stopping import Stop
from lego.rollout.trial import run_trial
from lego.rollout.verification import verify_trial
from lego.rundb import meta, trials, verdicts
from lego.rundb.rounds import Round
from lego.rundb.store import Row
from lego.rundb.trials import Trial

OnChange = Callable[[], None]


async def run_trials(site: Site, stop: Stop, on_change: OnChange) -> None:
    """Run the round's trials, this worker's share of them; returns when none is left with any worker, or on a stop.

    Raises SandboxError when one trial after another fails on infrastructure, and it or TaskError when none is left
    and not one could be run.
    """
    store, config = site.run.store, site.run.config

    async def work(trial: Trial) -> None:
        on_change()
        await run_trial(trial, site)
        on_change()
        refuse_hopeless_trials(store, site.round.id)

    def claim() -> Trial | None:
        if trials.reclaim(store, site.round.id, config.rollout.max_attempts):
            meta.event(store, "lease", f"took over the work of a worker that disappeared in round {site.round.ordinal}")
        return trials.claim(store, site.round.id)

    await drain(
        claim,
        work,
        concurrency=config.rollout.concurrency,
        stop=stop,
        finished=lambda: trials.unfinished(store, site.round.id) == 0,
    )


async def run_verifications(
    workshop: Workshop, round_: Round, stop: Stop, on_change: OnChange, complete: Callable[[], bool] = lambda: True
) -> None:
    """Verify what has finished; returns when `complete()` (no more trials will come) and nothing is left to verify.

    Raises VerifierError when one verification after another fails on infrastructure.
    """
    run = workshop.run
    store = run.store

    async def work(row: Row) -> None:
        await verify_trial(row, workshop)
        on_change()
        refuse_hopeless_verifications(store, round_.id)

    def claim() -> Row | None:
        trials.reclaim(store, round_.id, run.config.rollout.max_attempts)
        return verdicts.claim(store, round_.id)

    def finished() -> bool:
        left = verdicts.waiting(store, round_.id) + verdicts.being_verified(store, round_.id)
        return complete() and left == 0

    await drain(claim, work, concurrency=run.config.verify.concurrency, stop=stop, finished=finished)
