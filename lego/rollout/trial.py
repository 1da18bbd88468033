"""One attempt of one task: sandbox up, harness through the proxy, submission out, row closed."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

from lego.clock import TrialClock
from lego.engine.scripted import ScriptedEngine
from lego.errors import EngineError, HarnessError, LeaseLost, SandboxError
from lego.harness.launch import MOUNT, LaunchValues, render
from lego.harness.spec import HarnessSpec
from lego.proxy.records import FinishedCall
from lego.proxy.rules import CallRules
from lego.proxy.session import Caps, Session, SessionSpec
from lego.rollout.blame import blame
from lego.rollout.golds import gold_of
from lego.rollout.site import Site
from lego.rollout.steps import Walked, walk
from lego.rollout.verification import bench_of
from lego.rundb import calls, catalogue, routing, trials
from lego.rundb.trials import Trial
from lego.sandbox.container import Box, open_box
from lego.sandbox.create import BoxSpec, ImageMount, Mount
from lego.sandbox.ending import Ending, refuse_unhealthy
from lego.sandbox.seal import INSIDE, Seal, seal
from lego.sandbox.submission import Submission, collect, task_roots
from lego.tasks.task import Task
from lego.verifier.bench import published, run_hooks
from lego.verifier.grade import grade
from lego.verifier.verdict import Verdict

_NEVER_REACHED = {"wrong_token", "not_found", "foreign"}
"""Refusals that an unbroken harness never meets: calls that met only these did not reach the model."""
_UNHEARD = _NEVER_REACHED | {"client_gone"}
"""Ends of calls of which the agent heard nothing, so that nothing was its doing."""


async def run_trial(trial: Trial, site: Site) -> None:
    """One attempt, from claim to closed row. What goes wrong is raised by the part that failed, as its own error;
    `attempt` alone turns it into a row."""
    task, spec = site.task(trial), site.spec(trial)
    clock = TrialClock(min(site.settings.timeout, task.agent_timeout or site.settings.timeout))
    async with attempt(trial, site):
        with seal(site.podman.paths) as sealed:
            async with site.proxy.session(_session_spec(trial, site, spec, clock, sealed)) as session:
                _assign_script(site, task, spec, session)
                async with open_box(site.podman, _box_spec(trial, site, task, spec, sealed)) as box:

                    async def run(one: Task) -> Ending:
                        return await _launch(site, one, spec, session, sealed, clock, box)

                    async def hand_in(one: Task) -> Submission:
                        return await _hand_in(site, task, one, box)

                    async def judge(one: Task, left: Submission) -> Verdict:
                        bench = bench_of(one, site.run, site.podman, str(trial.id))
                        return await grade(bench, left, gold_of(site.run.store))

                    if task.steps:
                        walked = await walk(task, run, hand_in, judge, session.capped.is_set)
                        await session.close()
                        _refuse_infra(site, session, walked.ending)
                    else:
                        ending = await run(task)
                        await session.close()
                        _refuse_infra(site, session, ending)
                        walked = Walked(ending, await hand_in(task))
        _finish(trial, site, session, walked)


async def _launch(
    site: Site, task: Task, spec: HarnessSpec, session: Session, sealed: Seal, clock: TrialClock, box: Box
) -> Ending:
    """Run the harness on a task, or on one step of it."""
    launch = render(spec, _values(site, task, session), site.runtime_tag(spec))
    stage = task.stages[-1] if task.stages else None
    box.put({**(stage.files if stage else {}), **launch.files})
    box.lay(published(task))
    clock.limit = min(site.settings.timeout, task.agent_timeout or site.settings.timeout)
    ending = await box.run(
        launch.argv,
        env=launch.env,
        stdin=launch.stdin or b"",
        clock=clock,
        stop=session.capped,
        on_output=site.on_output,
        stage=stage,
    )
    # The container sees its folder read-only: only the host can take the socket away.
    if not session.closed and not sealed.socket.exists():
        raise SandboxError(f"the socket of the proxy vanished while the harness ran: {sealed.socket}")
    return ending


async def _hand_in(site: Site, task: Task, one: Task, box: Box) -> Submission:
    """What is there at the end of a task, or of `one` step of it."""
    await run_hooks(box, one)
    return await collect(
        box,
        task_roots(site.podman, task, box.spec.image),
        protected=task.protected,
        gold_paths=catalogue.gold_paths(site.run.store, task.id),
        test_files=task.grading.test_files,
        built=bool(one.separate),
    )


@asynccontextmanager
async def attempt(trial: Trial, site: Site) -> AsyncIterator[None]:
    """Turns whatever the attempt raises into its row; a cancelled attempt goes back to the queue."""
    store = site.run.store
    try:
        yield
    except LeaseLost:
        raise
    except asyncio.CancelledError:
        trials.release(store, trial)
        raise
    except Exception as error:
        fault, reason = blame(site.run, f"trial {trial.id} of {trial.task_id}", error)
        trials.fail(store, trial, fault, reason, site.run.config.rollout.max_attempts)


def _session_spec(trial: Trial, site: Site, spec: HarnessSpec, clock: TrialClock, sealed: Seal) -> SessionSpec:
    settings, store = site.settings, site.run.store

    def on_call(call: FinishedCall) -> None:
        calls.record(store, trial.id, vars(call))
        if call.routing is not None and site.round.kind == "train":  # of others nothing is learnt token by token
            routing.put(store, trial.id, call.seq, call.routing_begin, call.routing)
        if site.on_call:
            site.on_call(call)

    return SessionSpec(
        id=f"trial-{trial.id}",
        socket_dir=sealed.folder,
        token=secrets.token_urlsafe(24),
        caps=Caps(settings.max_turns, settings.max_output_tokens, settings.context, settings.max_total_tokens),
        temperature=settings.temperature,
        model_name=site.run.config.policy.name,
        programs=_programs(spec),
        policy_version=site.round.policy_version,
        history=settings.history,
        seed=site.seed_of(trial),
        rules=CallRules(spec.calls.subagent, spec.calls.auxiliary, spec.calls.volatile),
        on_call=on_call,
        on_fate=lambda seq, fate: calls.settle(store, trial.id, {seq: fate}),
        clock=clock,
    )


def _programs(spec: HarnessSpec) -> str:
    """Where whatever calls lies: the harness's runtime, if the harness is not the task's own program."""
    return "" if spec.run.argv[0].startswith("/") else f"{MOUNT}/"


def _assign_script(site: Site, task: Task, spec: HarnessSpec, session: Session) -> None:
    if isinstance(site.engine, ScriptedEngine):
        site.engine.assign(session.spec.id, site.script(task, site.settings.sampler, spec, site.rendering))


def _values(site: Site, task: Task, session: Session) -> LaunchValues:
    settings = site.settings
    return LaunchValues(
        instruction=task.instruction,
        token=session.token,
        model=session.spec.model_name,
        max_turns=settings.max_turns,
        max_output_tokens=settings.max_output_tokens,
        context=settings.context,
        temperature=settings.temperature,
        workdir=task.environment.workdir,
    )


def _box_spec(trial: Trial, site: Site, task: Task, spec: HarnessSpec, sealed: Seal) -> BoxSpec:
    environment = task.environment
    return BoxSpec(
        image=site.task_tag(task),
        limits=site.limits(task),
        mounts=(Mount(str(sealed.folder), INSIDE),),
        image_mounts=(ImageMount(site.runtime_tag(spec), MOUNT),),
        env=environment.env,
        user=task.agent_user or "",
        workdir=environment.workdir,
        workspace=environment.workspace,
        run_id=site.run.config.run.name,
        trial=str(trial.id),
        health=environment.health,
        several=bool(task.collect or task.steps),
    )


def _refuse_infra(site: Site, session: Session, ending: Ending) -> None:
    """Raises on evidence that the agent cannot produce: a lost container, a fault of our engine, no call at all, or
    none that was answered before the harness had enough of waiting."""
    summary = session.summary()
    if ending.reason == "lost":
        raise SandboxError("the container vanished while the harness ran")
    refuse_unhealthy(ending, "the agent")
    if summary.faults and summary.fault_of != "policy":
        raise EngineError(f"{summary.faults} replies were lost: {summary.fault}", fault=summary.fault_of or "infra")
    if not summary.heard and not summary.faults and not set(summary.rejected) - _UNHEARD:
        gone = summary.calls + summary.rejected.get("client_gone", 0)
        if gone:
            cause = f"it hung up on all its calls ({gone}), after {summary.engine_seconds:.0f} s of the engine's time"
            raise HarnessError(f"no reply reached the harness: {_with_last_words(cause, ending)}")
        raise HarnessError(f"no call reached the model: {_silence(summary.rejected, ending)}")


def _silence(rejected: Mapping[str, int], ending: Ending) -> str:
    """Why a harness that made no call made none, as far as the outside shows."""
    wrong = rejected.get("wrong_token", 0)
    if wrong:
        cause = f"the harness sent a wrong API key (refused: {wrong}), where its spec should pass {{token}} on"
    elif rejected.get("foreign"):
        cause = f"what opened the proxy's socket is no program of the harness's (refused: {rejected['foreign']})"
    elif ending.reason == "timeout":
        cause = "the harness hung until it was killed at the deadline"
    elif ending.reason == "exit" and ending.rc == 0:
        cause = "the harness ended with exit code 0, having done nothing"
    else:
        cause = f"the harness ended with exit code {ending.rc}" + (
            "" if ending.reason == "exit" else f" ({ending.reason})"
        )
    return _with_last_words(cause, ending)


def _with_last_words(cause: str, ending: Ending) -> str:
    words = " ".join((ending.stderr or ending.stdout)[-300:].decode(errors="replace").split())
    return f"{cause}; its last words: {words}" if words else f"{cause}, without a word"


def _finish(trial: Trial, site: Site, session: Session, walked: Walked) -> None:
    summary, ending, submission = session.summary(), walked.ending, walked.submission
    steps = {"steps": walked.told} if walked.told else {}
    how = session.cap_reason if ending.reason == "stopped" else ending.reason
    if how == "exit" and ending.rc in site.spec(trial).done.turns:
        how = "turns"
    elif how == "exit" and summary.overflowed:  # a harness that made room and went on was not cut short
        how = "context"
    trials.finish(
        site.run.store,
        trial,
        ending=how,
        reason="",
        exit_code=ending.rc,
        seconds=ending.seconds,
        waited=summary.engine_seconds,
        summary={**asdict(summary), **dict(ending.evidence), **steps},
        output=_redacted(ending, session.token),
        submission=submission.to_bytes(),
        submission_digest=submission.digest,
        submission_note=_note(submission),
    )


def _redacted(ending: Ending, token: str) -> bytes:
    """What the harness printed, without the trial's token."""
    output = ending.stdout + (b"\n--- stderr ---\n" + ending.stderr if ending.stderr else b"")
    return output.replace(token.encode(), b"[token]")


def _note(submission: Submission) -> dict[str, Any]:
    return {
        "changed": sorted(submission.paths()),
        "dropped": [[drop.path, f"{drop.reason}, {drop.how}"] for drop in submission.dropped],
    }
