"""`lego tasks`: what a config's tasks are, and whether they are sound as far as reading them tells."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import uvloop

from lego.config.load import Loaded
from lego.errors import TaskError
from lego.tasks.load import load_all
from lego.tasks.task import Task
from lego.tasks.validate import warnings
from stages._common import config_options, json_option, print_json


@click.group()
def command() -> None:
    """List a config's tasks, or check how they are written."""


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
@config_options
def validate(loaded: Loaded, as_json: bool) -> None:
    """Check the tasks' files. Exit code 1 if one cannot be loaded; warnings alone give 0.

    Whether a task fails with nothing done and passes with its solution, `lego verify --oracle` shows.
    """
    problems: list[TaskError] = []
    train, held_out = load_all(loaded.config.tasks, on_problem=problems.append)
    tasks = [*train, *held_out]
    doubts = {task.id: found for task in tasks if (found := warnings(task))}
    if as_json:
        errors = [{"message": one.message, "hint": one.hint} for one in problems]
        print_json({"tasks": len(tasks), "errors": errors, "warnings": doubts})
    else:
        for problem in problems:
            click.echo(f"error    {problem.message}" + (f"\n         {problem.hint}" if problem.hint else ""))
        for name, found in doubts.items():
            for one in found:
                click.echo(f"warning  {name}: {one}")
        doubtful = sum(len(found) for found in doubts.values())
        click.echo(
            f"{_count(len(tasks), 'task')} loaded, {_count(len(problems), 'error')}, {_count(doubtful, 'warning')}"
        )
    if problems:
        sys.exit(1)


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
