"""`lego tasks`: what a config's tasks are, and whether they are sound as far as reading them tells."""

from __future__ import annotations

import sys
from typing import Any

import click

from lego.config.load import Loaded
from lego.errors import TaskError
from lego.tasks.load import load_all
from lego.tasks.task import Task
from lego.tasks.validate import warnings
from stages._common import config_options, print_json


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
