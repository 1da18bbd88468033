"""One attempt of one task: sandbox up, harness through the proxy, submission out, row closed."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from lego.clock import TrialClock
from lego.engine.scripted import ScriptedEngine
from lego.errors import EngineError, HarnessError, LeaseLost, LegoError, ProxyError
from lego.harness.launch import Launch, LaunchValues, render
from lego.harness.spec import HarnessSpec
from lego.proxy.session import Caps, Session, SessionSpec
from lego.rollout.script import turns_of
from lego.rollout.site import Site, call_rules
from lego.rundb import calls, trials
from lego.rundb.trials import Trial
from lego.sandbox.container import Box, BoxSpec, Ending, open_box
from lego.sandbox.seal import sealed_socket
from lego.sandbox.submission import Submission, collect
from lego.tasks.task import Task
from lego.verifier.grade import submission_rules


async def run_trial(trial: Trial, site: Site) -> None:
    """One attempt, from claim to closed row. Everything that goes wrong is raised by the part that failed, as its
    own error; `attempt` alone turns it into a row."""
    task, spec = site.task(trial), site.spec(trial)
    async with attempt(trial, site), sealed_socket(site.podman) as seal:
        clock = TrialClock(min(site.settings.timeout, task.agent_timeout or site.settings.timeout))
        async with site.proxy.session(_session_spec(trial, site, spec, clock, seal.host_dir)) as session:
            _assign_script(trial, site, task, spec, session)
            launch = render(spec, _values(site, task, session), site.images.runtime_tag(spec))
            async with open_box(site.podman, _box_spec(trial, site, task, launch, seal.mount)) as box:
                clock.restart()
                ending = await box.run(launch.argv, env=launch.env, stdin=launch.stdin, clock=clock, stop=session.capped,
                                       on_output=site.on_output)
                await session.close()
                _raise_infra(session, ending)
                submission = await collect(box, submission_rules(task))
        _finish(trial, site, session, ending, submission)


@asynccontextmanager
async def attempt(trial: Trial, site: Site) -> AsyncIterator[None]:
    """Turns what the attempt raises into its row: an error's own fault, a cancelled attempt back to the queue."""
    try:
        yield
    except LeaseLost:
        raise
    except asyncio.CancelledError:
        trials.release(site.run.store, trial)
        raise
    except LegoError as error:
        reason = f"{error}" + (f" ({error.hint})" if error.hint else "")
        trials.fail(site.run.store, trial, error.fault, reason, site.run.config.rollout.max_attempts)


def _session_spec(trial: Trial, site: Site, spec: HarnessSpec, clock: TrialClock, socket_dir: object) -> SessionSpec:
    from pathlib import Path

    settings, store = site.settings, site.run.store
    return SessionSpec(
        id=f"trial-{trial.id}",
        socket_dir=Path(str(socket_dir)),
        token=secrets.token_urlsafe(24),
        caps=Caps(settings.max_turns, settings.max_output_tokens, settings.context, settings.max_total_tokens),
        temperature=settings.temperature,
        model_name=site.run.config.policy.name,
        policy_version=site.round.policy_version,
        history=settings.history,
        seed=site.seed_of(trial),
        rules=call_rules(spec),
        on_call=lambda call: calls.record(store, trial.id, vars(call)),
        on_fate=lambda seq, fate: calls.settle(store, trial.id, {seq: fate}),
        clock=clock,
    )
