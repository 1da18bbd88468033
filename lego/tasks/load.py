"""From the config's sources to tasks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lego.config.schema import TaskSource, TasksSection
from lego.errors import ConfigError, TaskError
from lego.tasks import dataset, family, harbor, swebench
from lego.tasks.task import Task

OnProblem = Callable[[TaskError], None]


def load_all(section: TasksSection, on_problem: OnProblem | None = None) -> tuple[list[Task], list[Task]]:
    """The training and the held-out tasks, ids unique over both and no content in both.

    A family asked for in both places never generates the same task twice; a task folder named in both is an error.
    """
    train = load_tasks(section.train, on_problem=on_problem)
    held_out = load_tasks(section.eval, avoid=train, on_problem=on_problem)
    return train, held_out


def load_tasks(
    sources: Sequence[TaskSource], *, avoid: Sequence[Task] = (), on_problem: OnProblem | None = None
) -> list[Task]:
    """The tasks of `sources` in order, ids unique and contents distinct from each other and from those of `avoid`.

    A folder that cannot be loaded is told to `on_problem` and left out; without `on_problem` its TaskError is raised,
    as the user's fault: it was the config that asked for it.
    """
    taken = {task.id: task for task in avoid}
    contents = {task.digest: task for task in avoid}
    tasks: list[Task] = []
    for source in sources:
        try:
            loaded = _load_source(source, contents, on_problem)
        except TaskError as error:
            error.fault = "user" if error.fault == "task" else error.fault
            raise
        for task in _chosen(source, loaded):
            same = taken.get(task.id) or contents.get(task.digest)
            if same is not None:
                what = "the same id" if same.id == task.id else "the same content"
                raise TaskError(f"two tasks have {what}: {same.where} and {task.where}", fault="user")
            taken[task.id] = task
            contents[task.digest] = task
            tasks.append(replace(task, harness=source.harness))
    return tasks


def _chosen(source: TaskSource, tasks: list[Task]) -> list[Task]:
    """The tasks that the source's file of ids names, in their own order; all where it has none."""
    if not source.only:
        return tasks
    try:
        lines = Path(source.only).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tasks: only: {source.only} cannot be read: {error}") from error
    wanted = {words[0] for line in lines if (words := line.partition("#")[0].split())}
    kept = [task for task in tasks if task.id in wanted]
    if not kept:
        where = source.path or source.name
        raise ConfigError(f"tasks: only: {source.only} names no task of {where}", hint="lego tasks ls lists their ids")
    return kept


def _load_source(source: TaskSource, contents: dict[str, Task], on_problem: OnProblem | None) -> list[Task]:
    if source.source == "family":
        return family.generate(source, avoid=contents)
    if source.source not in ("harbor", "swebench"):
        raise ConfigError(f"tasks: no source is named {source.source!r}", hint="sources: harbor, swebench, family")
    if not source.path:
        raise ConfigError(f"tasks: a {source.source} source needs a path")
    if source.source == "swebench":
        path = Path(source.path).expanduser()
        return swebench.load(path, source.options, count=source.count, on_problem=on_problem)
    sealed, host_env, mirrors = _harbor_options(source)
    tasks: list[Task] = []
    for folder in _harbor_folders(source, mirrors):
        if source.count and len(tasks) == source.count:
            break
        try:
            tasks.append(harbor.load(folder, sealed=sealed, host_env=host_env))
        except TaskError as error:
            if on_problem is None:
                error.hint = error.hint or "`lego tasks validate` lists every task that cannot be loaded"
                raise
            on_problem(error)
    return tasks


def _harbor_folders(source: TaskSource, mirrors: dict[str, str]) -> list[Path]:
    if not dataset.is_collection(source.path):
        return harbor.find(Path(source.path))
    found = dataset.folders(source.path, source.name, mirrors)
    return [task for folder in found for task in harbor.find(folder)]


def _harbor_options(source: TaskSource) -> tuple[bool, dict[str, str], dict[str, str]]:
    options = dict(source.options)
    network = options.pop("network", "as-asked")
    names = list(options.pop("host_env", []))
    mirrors = {str(url): str(place) for url, place in dict(options.pop("mirrors", {})).items()}
    if options:
        raise ConfigError(
            f"tasks: harbor source {source.path}: no such option: {', '.join(options)}",
            hint="options: network (as-asked | sealed), host_env (names of host variables a task may read), "
            "mirrors (git URL: what is cloned in its place)",
        )
    if network not in ("as-asked", "sealed"):
        raise ConfigError(f"tasks: harbor source {source.path}: network must be as-asked or sealed, not {network!r}")
    return network == "sealed", {name: os.environ[name] for name in names if name in os.environ}, mirrors
