"""What every trial of a round is run with; kept in the round's row, so that a round is one experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lego.config.schema import Config
from lego.errors import ConfigError
from lego.policy import PolicyRef
from lego.rollout.run import Run
from lego.rundb import catalogue, rounds
from lego.rundb.rounds import Round, RoundKind
from lego.units import parse_duration

Sampler = Literal["policy", "script", "oracle"]
"""Who speaks: the policy, the task's demonstration, or the task's solution said as one command."""


@dataclass(frozen=True)
class RoundSettings:
    """`timeout` in seconds, the trial clock's; token counts in tokens; `samples` trials of each of `tasks` tasks
    (0 = all)."""

    sampler: Sampler
    tasks: int
    samples: int
    temperature: float
    max_turns: int
    max_output_tokens: int
    max_total_tokens: int
    context: int
    history: Literal["raw", "template"]
    timeout: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> RoundSettings:
        return cls(**settings)


def settings_for(config: Config, kind: RoundKind) -> RoundSettings:
    """The settings of a round opened now."""
    rollout = config.rollout
    scripted = config.engine.kind == "scripted"
    sampler: Sampler = "script" if scripted else "policy"
    tasks, samples = rollout.tasks_per_round, rollout.samples_per_task
    temperature, history = rollout.temperature, rollout.history
    if kind == "eval":
        tasks, samples, temperature, history = (
            config.eval.tasks,
            config.eval.samples,
            config.eval.temperature,
            config.eval.history,
        )
    if kind == "demo":
        tasks, samples, sampler = config.sft.tasks, 1, "oracle" if config.sft.source == "oracle" else "script"
    return RoundSettings(
        sampler=sampler,
        tasks=tasks,
        samples=samples,
        temperature=temperature,
        max_turns=rollout.max_turns,
        max_output_tokens=rollout.max_output_tokens,
        max_total_tokens=rollout.max_total_tokens,
        context=config.policy.context,
        history="template" if history == "template" else "raw",
        timeout=parse_duration(config.sandbox.timeout),
    )


def begin_round(run: Run, kind: RoundKind, policy: PolicyRef, ordinal: int) -> Round:
    """Open round `ordinal` of its kind (or join it, if another process was first)."""
    config, seed = run.config, run.config.run.seed
    settings = settings_for(config, kind)
    ids = catalogue.task_ids(run.store, "eval" if kind == "eval" else "train")
    if not ids:
        section = "eval" if kind == "eval" else "train"
        raise ConfigError(
            f"tasks.{section} is empty: there is nothing to run", hint=f"name a source under tasks.{section}"
        )
    if kind == "train":
        ids = run.trainable()
        if not ids:
            raise ConfigError(
                "no task of tasks.train has a solution: whether one can be solved at all is not known",
                hint="a task without solution/solve.sh may stand under tasks.eval",
            )
    if kind == "eval":
        # The same held-out tasks for every policy, so that evaluations compare.
        chosen = ids[: settings.tasks] if settings.tasks else ids
    elif kind == "demo" and config.sft.source == "solved":
        chosen = []  # nothing to demonstrate: the policy's own solved trials are the samples
    else:
        chosen = rounds.pick_tasks(ids, seed, ordinal, settings.tasks)
    drawn = 0 if kind == "eval" else ordinal
    return rounds.open_round(
        run.store,
        kind,
        ordinal=ordinal,
        policy_version=policy.version,
        tasks=[(task, run.harness_of(task, drawn)) for task in chosen],
        samples=settings.samples,
        settings=settings.as_dict(),
    )
