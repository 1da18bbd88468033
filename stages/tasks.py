"""`lego tasks`: what a config's tasks are, whether they are sound, which are worth training on, and new ones."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
import uvloop

from lego.config.load import Loaded
from lego.errors import ConfigError, LegoError
from lego.plain import neutral
from lego.rundb import verdicts
from lego.rundb.paths import run_db
from lego.rundb.store import Store
from lego.tasks.load import load_all
from lego.tasks.task import Task
from lego.tasks.validate import warnings
from stages._common import config_options, json_option, print_json
from stages.verify import check_oracle


@click.group()
def command() -> None:
    """List a config's tasks, check them, choose among them, or make new ones."""


@command.command()
@config_options
def ls(loaded: Loaded, as_json: bool) -> None:
    """List every task: its id, its use, whether it has a solution, and how its instruction begins."""
    train, held_out = load_all(loaded.config.tasks)
    rows = [_row(task, use) for use, tasks in (("train", train), ("eval", held_out)) for task in tasks]
    if as_json:
        print_json(rows)
        return
    width = max((len(row["id"]) for row in rows), default=0)
    for row in rows:
        oracle = "oracle" if row["oracle"] else "no oracle"
        click.echo(f"{row['id']:<{width}}  {row['use']:<5}  {oracle:<9}  {row['digest'][:8]}  {row['begins']}")


@command.command()
@click.option("--sandbox", is_flag=True, help="Run each too: nothing done must fail, the solution must pass, twice.")
@config_options
def validate(loaded: Loaded, as_json: bool, sandbox: bool) -> None:
    """Check the tasks' files. Exit code 1 if one cannot be loaded; warnings alone give 0.

    With --sandbox each is also run as `lego verify --oracle` does it: exit code 4 if one does not tell solved from
    unsolved.
    """
    problems: list[LegoError] = []
    train, held_out = load_all(loaded.config.tasks, on_problem=problems.append)
    tasks = [*train, *held_out]
    doubts = {task.id: found for task in tasks if (found := warnings(task))}
    runs = sandbox and not problems
    if as_json and runs:
        pass  # The sandboxes' results are the one document that is printed.
    elif as_json:
        errors = [{"message": one.message, "hint": one.hint} for one in problems]
        print_json({"tasks": len(tasks), "errors": errors, "warnings": doubts})
    else:
        for problem in problems:
            click.echo(neutral(f"error    {problem.message}" + (f"\n         {problem.hint}" if problem.hint else "")))
        for name, found in doubts.items():
            for one in found:
                click.echo(f"warning  {name}: {one}")
        doubtful = sum(len(found) for found in doubts.values())
        click.echo(
            f"{_count(len(tasks), 'task')} loaded, {_count(len(problems), 'error')}, {_count(doubtful, 'warning')}"
        )
    if runs:
        uvloop.run(check_oracle(loaded, as_json))
    if problems:
        sys.exit(1)


@command.command("filter")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File for the task ids.")
@click.option("--above", type=click.FloatRange(0, 1), default=0.0, show_default=True, help="Lowest rate, excluded.")
@click.option("--below", type=click.FloatRange(0, 1), default=1.0, show_default=True, help="Highest rate, excluded.")
@click.option("--min-trials", type=click.IntRange(1), default=1, show_default=True, help="Fewer tell nothing.")
@config_options
def filter_(loaded: Loaded, as_json: bool, out: Path, above: float, below: float, min_trials: int) -> None:
    """Keep the tasks that the run's own trials solved sometimes: neither never nor always.

    Counts the graded trials that a policy sampled, in every round of the config's run. A source reads the file back as
    `only: FILE`. Exit code 1, and no file, where no task is left.
    """
    path = run_db(loaded.config.run.dir, loaded.config.run.name)
    if not path.exists():
        raise ConfigError(f"there is no run {loaded.config.run.name} yet", hint="lego rollout begins it")
    found = verdicts.by_task(Store.open_read_only(path))
    rows = []
    for task in [task for tasks in load_all(loaded.config.tasks) for task in tasks]:
        solved, graded = found.get(task.id, (0, 0))
        rate = solved / graded if graded else None
        if rate is None or graded < min_trials:
            why = "untried"
        else:
            why = "kept" if above < rate < below else "too hard" if rate <= above else "too easy"
        rows.append({"id": task.id, "solved": solved, "graded": graded, "why": why})
    kept = [row for row in rows if row["why"] == "kept"]
    counts = Counter(row["why"] for row in rows)
    if as_json:
        print_json(rows)
    else:
        told = ", ".join(f"{count} {why}" for why, count in counts.most_common())
        click.echo(f"{len(kept)} of {_count(len(rows), 'task')} kept ({told})")
    if not kept:
        sys.exit(1)
    bounds = f"solved by more than {above:g} and less than {below:g} of their trials"
    lines = [f"# {len(kept)} of {_count(len(rows), 'task')} of the run {loaded.config.run.name}: {bounds}"]
    lines += [f"{row['id']}  # {row['solved']} of {row['graded']}" for row in kept]
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    aside.replace(out)


@command.command()
@click.argument("targets", nargs=-1, required=True, metavar="PACKAGE==VERSION|PATH...")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for the tasks.")
@click.option("--count", type=click.IntRange(1), default=25, show_default=True, help="Tasks to make of each target.")
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which bugs, and in which order.")
@click.option("--jobs", type=click.IntRange(1), help="Containers that try bugs at once. [default: one a core]")
@click.option("--with", "requirements", multiple=True, metavar="PACKAGE", help="What the tests need besides.")
@click.option("-c", "--config", metavar="CONFIG", help="A run's config, for its images and sandbox sections.")
@json_option
def inject(
    targets: tuple[str, ...], out: Path, count: int, seed: int, jobs: int | None, requirements: tuple[str, ...],
    config: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Make tasks by putting bugs into projects that have tests: packages by their sdists, or folders.

    Each bug is tried out in a sandbox: tests that passed fail, the others go on passing, the way back is proven. Ended
    by a kill, the same command goes on where it was.
    """
    from stages._inject import inject as work

    uvloop.run(work(targets, out, count, seed, jobs or os.cpu_count() or 1, requirements, config, as_json))


def _row(task: Task, use: str) -> dict[str, Any]:
    text = " ".join(task.instruction.split())
    return {
        "id": task.id,
        "use": use,
        "oracle": bool(task.solution),
        "digest": task.digest,
        "begins": text if len(text) <= 60 else text[:59] + "…",
        "where": task.where,
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
