"""From the config's sources to tasks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from lego.config.schema import TaskSource, TasksSection
from lego.errors import ConfigError, LegoError, TaskError
from lego.plain import one_line
from lego.tasks import dataset, family, harbor, swebench
from lego.tasks.harbor_words import options_error
from lego.tasks.reading import OnProblem, guarded, raised, text_of
from lego.tasks.task import Task


class _HarborOptions(BaseModel):
    """`network: sealed` runs tasks that ask for one without it; `host_env`: host variables that tasks may read;
    `mirrors`: git URL -> what is cloned in its place."""

    model_config = ConfigDict(strict=True, extra="forbid")
    network: Literal["as-asked", "sealed"] = "as-asked"
    host_env: list[str] = []
    mirrors: dict[str, str] = {}


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

    What cannot be loaded, a task or a whole source, is told to `on_problem` and left out; without `on_problem` the
    first such error is raised, as the user's fault: it was the config that asked for it. What is out of reach for now
    is always raised.
    """
    taken = {task.id: task for task in avoid}
    contents = {task.digest: task for task in avoid}
    tasks: list[Task] = []
    for source in sources:
        loaded: list[Task] = []
        try:
            with guarded(f"tasks: {source.source} {source.path or source.name}"):
                loaded = _chosen(source, _load_source(source, contents, on_problem))
        except LegoError as error:
            if isinstance(error, TaskError) and error.fault == "task":
                error.fault, error.hint = "user", error.hint or "`lego tasks validate` lists all that cannot be loaded"
            if on_problem is None or error.fault == "infra":
                raise
            on_problem(error)
        for task in loaded:
            same = taken.get(task.id) or contents.get(task.digest)
            if same is not None:
                what = "the same id" if same.id == task.id else "the same content"
                tell = on_problem or raised
                tell(TaskError(f"two tasks have {what}: {same.where} and {task.where}", fault="user"))
                continue
            taken[task.id] = task
            contents[task.digest] = task
            tasks.append(replace(task, harness=source.harness))
    return tasks


def _chosen(source: TaskSource, tasks: list[Task]) -> list[Task]:
    """The tasks that the source's file of ids names, in their own order; all where it has none."""
    if not source.only:
        return tasks
    try:
        lines = text_of(Path(source.only)).splitlines()
    except TaskError as error:
        raise ConfigError(f"tasks: only: {one_line(error.message)}") from error
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
    options = _harbor_options(source)
    host_env = {name: os.environ[name] for name in options.host_env if name in os.environ}
    tasks: list[Task] = []
    for folder in _harbor_folders(source, options.mirrors, on_problem):
        if source.count and len(tasks) == source.count:
            break
        try:
            tasks.append(harbor.load(folder, sealed=options.network == "sealed", host_env=host_env))
        except TaskError as error:
            (on_problem or raised)(error)
    return tasks


def _harbor_folders(source: TaskSource, mirrors: dict[str, str], on_problem: OnProblem | None) -> list[Path]:
    if not dataset.is_collection(source.path):
        return harbor.find(Path(source.path))
    found = dataset.folders(source.path, source.name, mirrors, on_problem)
    return [task for folder in found for task in harbor.find(folder)]


def _harbor_options(source: TaskSource) -> _HarborOptions:
    try:
        return _HarborOptions.model_validate(source.options)
    except ValidationError as error:
        hint = (
            "options: network (as-asked | sealed), host_env (a list of host variables that tasks may read), "
            "mirrors (git URL: what is cloned in its place)"
        )
        raise options_error(f"harbor source {source.path}", error, hint) from error
