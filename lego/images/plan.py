"""Which images a run needs: its bases, one a task environment (and one a verifier's own), one a harness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from lego.config.schema import ImagesSection
from lego.errors import LegoError
from lego.harness.spec import HarnessSpec
from lego.images import keys, recipes
from lego.images.recipes import Recipe
from lego.tasks.task import Environment, Task

Kind = Literal["base", "task", "verifier", "runtime"]

_BASE_TIMEOUT = 1800.0
_RUNTIME_TIMEOUT = 1800.0


@dataclass(frozen=True)
class ImageJob:
    """One image to be had. `problem` is set where its recipe could not even be made. `timeout` is in seconds.
    `section` says what a base is made of.
    """

    kind: Kind
    key: str
    tag: str
    name: str
    recipe: Recipe | None = None
    tasks: tuple[Task, ...] = ()
    timeout: float = _BASE_TIMEOUT
    problem: str = ""
    section: ImagesSection | None = None


def plan(tasks: Iterable[Task], specs: Iterable[HarnessSpec], section: ImagesSection) -> list[ImageJob]:
    """The images for these tasks and harnesses, the bases first; tasks with one environment share one image."""
    wanted = list(specs)
    bases = {keys.base_tag(section): section}
    for spec in wanted:
        own = recipes.runtime_section(spec, section)
        bases.setdefault(keys.base_tag(own), own)
    jobs: list[ImageJob] = []
    members: dict[tuple[Kind, str], list[Task]] = defaultdict(list)
    recipe_of: dict[tuple[Kind, str], Recipe] = {}
    for task in tasks:
        graded = [step.task for step in task.steps] or [task]
        try:
            wants: list[tuple[Kind, Task, Recipe | None]] = [("task", task, recipes.task_recipe(task, section))]
            wants += [("verifier", one, recipes.verifier_recipe(one, section)) for one in graded]
        except LegoError as error:
            jobs.append(ImageJob("task", task.digest, "", task.id, tasks=(task,), problem=error.message))
            continue
        for kind, one, recipe in wants:
            if recipe is not None:
                recipe_of[kind, recipe.key] = recipe
                members[kind, recipe.key].append(one)
                bases |= {tag: own for tag, own in recipes.suites(section).items() if tag in recipe.dockerfile}
    for (kind, key), sharers in members.items():
        name = sharers[0].id if len(sharers) == 1 else f"{sharers[0].id} and {len(sharers) - 1} more"
        timeout = max(_environment(task, kind).build_timeout for task in sharers)
        tag = keys.tag(kind, key)
        jobs.append(ImageJob(kind, key, tag, name, recipe_of[kind, key], tuple(sharers), timeout))
    runtimes: dict[str, ImageJob] = {}
    for spec in wanted:
        recipe = recipes.runtime_recipe(spec, section)
        known = runtimes.get(recipe.key)
        name = f"{known.name}, {spec.name}" if known else spec.name
        runtimes[recipe.key] = ImageJob(
            "runtime", recipe.key, keys.tag("runtime", recipe.key), name, recipe, timeout=_RUNTIME_TIMEOUT
        )
    base_jobs = [ImageJob("base", keys.base_key(own), tag, own.base, section=own) for tag, own in bases.items()]
    return base_jobs + jobs + list(runtimes.values())


def _environment(task: Task, kind: Kind) -> Environment:
    return task.separate.environment if kind == "verifier" and task.separate else task.environment
