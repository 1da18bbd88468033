"""`lego try TASK`: one attempt in the foreground, shown as it happens, in a scratch run of its own."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import uvloop

from lego.errors import ConfigError
from stages._common import config_options, print_json

if TYPE_CHECKING:
    from lego.config.load import Loaded
    from lego.config.schema import Config
    from lego.proxy.records import FinishedCall


@click.command(name="try")
@click.argument("task")
@click.option("--harness", help="Which harness to run it in. [default: the task's own, else the config's first]")
@click.option("--output", "show_output", is_flag=True, help="Print what the harness itself prints, too.")
@config_options
def command(loaded: Loaded, as_json: bool, task: str, harness: str | None, show_output: bool) -> None:
    """Run one attempt of TASK, a task id of the config or a task folder, and show it as it happens.

    The run's own database is left alone. engine.kind=scripted follows the task's demonstration instead of a policy.
    """
    uvloop.run(_try(loaded, as_json, task, harness, show_output))


async def _try(loaded: Loaded, as_json: bool, task: str, harness: str | None, show_output: bool) -> None:
    from lego.rollout.run import open_run
    from lego.rollout.scheduler import leases_renewed
    from lego.rollout.settings import settings_for
    from lego.rollout.site import open_workshop
    from lego.rollout.stopping import stop_on_signals
    from lego.rollout.work import run_trials, run_verifications
    from lego.rundb import rounds
    from lego.rundb.trial_view import gather
    from stages._round import ready_images
    from stages._run import say
    from stages.show import lines

    policy = _newest_policy(loaded.config)
    with tempfile.TemporaryDirectory(prefix="lego-try-") as folder:
        run = open_run(replace(loaded, config=_scratch(loaded.config, folder, policy, task, harness)))
        name = _named(task, list(run.tasks))
        chosen = harness or run.tasks[name].harness or next(iter(run.config.harness))
        settings = replace(settings_for(run.config, "train"), samples=1)
        round_ = rounds.open_round(
            run.store, "eval", ordinal=1, policy_version=run.newest_policy().version,
            tasks=[(name, chosen)], samples=1, settings=settings.as_dict(),
        )  # fmt: skip
        show = None if as_json else _show_call
        output = _show_output if show_output else None
        async with (
            open_workshop(run) as workshop,
            stop_on_signals(say) as stop,
            leases_renewed(run.store),
        ):
            await ready_images(workshop, round_, stop)
            if not stop.asked.is_set():
                site = replace(await workshop.site(round_), on_call=show, on_output=output)
                await run_trials(site, stop, lambda: None)
            if not stop.asked.is_set():
                await run_verifications(workshop, round_, stop, lambda: None)
        if stop.asked.is_set():
            raise click.Abort
        last = run.store.value("SELECT max(id) FROM trials")
        report = gather(run.store, last)
        if as_json:
            print_json({key: value for key, value in report.items() if key not in ("output", "log")})
        else:
            click.echo("\n".join(lines({**report, "turns": []}, full=False)))


def _scratch(config: Config, folder: str, policy: str, task: str, harness: str | None) -> Config:
    """The config of a run of its own: this task, the newest policy there is, this harness if one is named."""
    from lego.config.schema import TaskSource, TasksSection

    tasks = config.tasks
    if Path(task).is_dir():
        tasks = TasksSection(train=[], eval=[TaskSource(source="harbor", path=task)])
    return replace(
        config,
        run=replace(config.run, name="try", dir=folder),
        policy=replace(config.policy, model=policy),
        tasks=tasks,
        harness={harness: 1.0} if harness else config.harness,
        rollout=replace(config.rollout, max_attempts=1, concurrency=1),
    )


def _newest_policy(config: Config) -> str:
    """The folder of the run's newest policy, or what the config starts from."""
    from lego.rundb import catalogue
    from lego.rundb.paths import run_db
    from lego.rundb.store import Store

    path = run_db(config.run.dir, config.run.name)
    if path.exists():
        policy = catalogue.policy(Store.open_read_only(path))
        if policy is not None:
            return policy.path
    return config.policy.model


def _named(task: str, known: list[str]) -> str:
    import difflib

    if Path(task).is_dir():
        return known[0]
    if task not in known:
        close = difflib.get_close_matches(task, known, n=1)
        raise ConfigError(
            f"there is no task {task} in this config",
            hint=f"did you mean {close[0]}?" if close else "lego tasks ls names them",
        )
    return task


def _show_output(stream: str, data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.flush()


def _show_call(call: FinishedCall) -> None:
    """A turn, as soon as it has ended."""
    from stages.show import turn_lines

    shown: dict[str, Any] = {
        "seq": call.seq, "kind": call.kind, "fate": call.fate, "finish": call.finish, "status": call.status,
        "reason": call.reason, "sampled_tokens": len(call.completion_ids),
        "new_messages": call.messages.get("new", []), "reply": call.reply, "drift": call.drift,
    }  # fmt: skip
    click.echo("\n".join(turn_lines(shown, full=False)))
