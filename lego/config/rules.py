"""Every rule about what a config may say, in one place: values of one field, then rules across fields."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterator

from lego.config.fields import flat
from lego.config.schema import Config, ObjectiveSection, TaskSource
from lego.config.shape import Problem
from lego.errors import ConfigError
from lego.units import parse_duration, parse_size

SCHEDULES = ("constant", "linear", "cosine")
CHOICES: dict[str, tuple[str, ...]] = {
    "engine.kind": ("transformers", "vllm", "scripted"),
    "engine.dtype": ("float32", "bfloat16"),
    "engine.device": ("auto", "cpu", "cuda"),
    "sandbox.network": ("sealed",),
    "rollout.history": ("raw", "template"),
    "verify.tamper": ("penalise", "exclude", "flag"),
    "train.objective.name": ("gspo", "grpo", "dr_grpo", "dapo", "cispo", "rloo", "reinforce"),
    "train.objective.advantage": ("auto", "standardised", "centred", "leave_one_out"),
    "train.objective.weighting": ("auto", "trial", "token", "constant"),
    "train.objective.ratio": ("segment", "trial"),
    "train.objective.flat": ("auto", "count", "skip", "weigh"),
    "train.objective.segment_weight": ("tokens", "equal"),
    "train.correction.old": ("recompute", "bypass"),
    "train.optimizer.schedule": SCHEDULES,
    "train.backend": ("torch", "deepspeed"),
    "train.deepspeed.offload": ("none", "optimizer", "all"),
    "train.attention": ("auto", "sdpa", "flash_attention_2", "flash_attention_3"),
    "train.lora.export": ("merged", "adapter"),
    "train.truncated": ("train", "mask", "penalise"),
    "sft.source": ("script", "oracle", "solved"),
    "sft.optimizer.schedule": SCHEDULES,
    "eval.history": ("raw", "template"),
    "retention.tokens": ("keep", "drop"),
}
SOURCES = ("harbor", "swebench", "family")
WITHOUT_RATIO = ("rloo", "reinforce")
"""Objectives without an importance ratio (lego.objective.recipes)."""
BASES = ("debian:", "registry:", "rootfs:")
DURATIONS = ("sandbox.timeout", "rollout.lease", "rollout.retry_pause", "verify.timeout")
SIZES = ("engine.cache", "sandbox.memory", "sandbox.disk", "sandbox.disk_reserve")
SMALLEST_LIMIT = 2**20

_Bound = tuple[Callable[[float], bool], str]
_POSITIVE: _Bound = (lambda value: value > 0, "must be more than 0")
_NOT_NEGATIVE: _Bound = (lambda value: value >= 0, "must not be negative")
_AT_LEAST_ONE: _Bound = (lambda value: value >= 1, "must be at least 1")
BOUNDS: dict[str, _Bound] = {
    "run.seed": _NOT_NEGATIVE,
    "policy.context": (lambda value: value >= 64, "must be at least 64 tokens"),
    "engine.max_concurrent": _AT_LEAST_ONE,
    "engine.threads": _NOT_NEGATIVE,
    "engine.tensor_parallel": _AT_LEAST_ONE,
    "sandbox.pids": (lambda value: value >= 8, "must be at least 8: a shell and a test runner need that many"),
    "sandbox.cpus": _POSITIVE,
    "images.parallel": _AT_LEAST_ONE,
    "rollout.tasks_per_round": _NOT_NEGATIVE,
    "rollout.samples_per_task": _AT_LEAST_ONE,
    "rollout.temperature": (lambda value: value > 0, "must be more than 0: a greedy policy has nothing to learn from"),
    "rollout.max_turns": _AT_LEAST_ONE,
    "rollout.max_output_tokens": _AT_LEAST_ONE,
    "rollout.max_total_tokens": _NOT_NEGATIVE,
    "rollout.refill": _NOT_NEGATIVE,
    "rollout.max_attempts": _AT_LEAST_ONE,
    "rollout.concurrency": _AT_LEAST_ONE,
    "verify.concurrency": _AT_LEAST_ONE,
    "train.objective.clip_low": (lambda value: 0 <= value <= 1, "must be from 0 (as the objective's paper) to 1"),
    "train.objective.clip_high": _NOT_NEGATIVE,
    "train.objective.flat_weight": (lambda value: 0 < value <= 1, "must be more than 0 and at most 1 (skip is 0)"),
    "train.objective.kl": _NOT_NEGATIVE,
    "train.objective.entropy": _NOT_NEGATIVE,
    "train.correction.token_tis": (
        lambda value: value == 0 or value >= 1,
        "must be at least 1 (or 0 for off): a smaller bound would shrink every token's weight",
    ),
    "train.correction.sequence_tis": (lambda value: value == 0 or value >= 1, "must be at least 1, or 0 for off"),
    "train.correction.sequence_mask": (lambda value: value == 0 or value >= 1, "must be at least 1, or 0 for off"),
    "train.correction.veto": (lambda value: 0 <= value < 1, "must be at least 0 and less than 1"),
    "train.optimizer.lr": _POSITIVE,
    "train.optimizer.warmup": _NOT_NEGATIVE,
    "train.optimizer.weight_decay": _NOT_NEGATIVE,
    "train.optimizer.max_grad_norm": _NOT_NEGATIVE,
    "train.optimizer.horizon": _NOT_NEGATIVE,
    "train.optimizer.floor": (lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    "train.deepspeed.zero": (lambda value: 0 <= value <= 3, "must be 0, 1, 2 or 3"),
    "train.deepspeed.processes": _NOT_NEGATIVE,
    "train.moe.balance": _NOT_NEGATIVE,
    "train.lora.rank": _NOT_NEGATIVE,
    "train.lora.alpha": _POSITIVE,
    "train.gate.mean_logp_gap": _NOT_NEGATIVE,
    "train.gate.k3": _POSITIVE,
    "train.gate.min_correlation": (lambda value: -1 <= value <= 1, "must be between -1 and 1"),
    "train.micro_batch_tokens": _AT_LEAST_ONE,
    "train.minibatches": _AT_LEAST_ONE,
    "sft.tasks": _NOT_NEGATIVE,
    "sft.epochs": _AT_LEAST_ONE,
    "sft.batch_trials": _AT_LEAST_ONE,
    "sft.held_out": (lambda value: 0 <= value < 1, "must be at least 0 and less than 1"),
    "sft.final_lr": (lambda value: 0 < value <= 1, "must be more than 0 and at most 1"),
    "sft.patience": _NOT_NEGATIVE,
    "sft.optimizer.lr": _POSITIVE,
    "sft.optimizer.warmup": _NOT_NEGATIVE,
    "sft.optimizer.weight_decay": _NOT_NEGATIVE,
    "sft.optimizer.max_grad_norm": _NOT_NEGATIVE,
    "sft.optimizer.horizon": _NOT_NEGATIVE,
    "sft.optimizer.floor": (lambda value: 0 <= value <= 1, "must be from 0 to 1"),
    "eval.tasks": _NOT_NEGATIVE,
    "eval.samples": _AT_LEAST_ONE,
    "eval.temperature": _NOT_NEGATIVE,
    "eval.every": _NOT_NEGATIVE,
    "loop.rounds": _AT_LEAST_ONE,
    "retention.policies": _NOT_NEGATIVE,
}


def broken(config: Config) -> Iterator[Problem]:
    """Every rule that a config of the right shape breaks. Reads nothing but symbolic links, to compare task folders."""
    yield from _single(config)
    yield from _run(config)
    yield from _tasks(config)
    yield from _rollout(config)
    yield from _train(config)
    yield from _optimizers(config)
    yield from _scale(config)


def _single(config: Config) -> Iterator[Problem]:
    values = flat(config)
    for key, allowed in CHOICES.items():
        yield from _choice(key, values[key], allowed)
    for key, (holds, message) in BOUNDS.items():
        if not holds(values[key]):
            yield Problem(key, f"{message}, and is {values[key]:g}")
    for key in DURATIONS:
        if key == "verify.timeout" and not values[key]:
            continue
        yield from _unit(key, values[key], parse_duration)
    for key in SIZES:
        yield from _unit(key, values[key], parse_size)


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> Iterator[Problem]:
    if value in allowed:
        return
    near = difflib.get_close_matches(value, allowed, n=1)
    advice = f"did you mean {near[0]}?" if near else f"it is one of {', '.join(allowed)}"
    yield Problem(key, f"{value!r} is not known; {advice}")


def _unit(key: str, text: str, parse: Callable[[str], float]) -> Iterator[Problem]:
    try:
        amount = parse(text)
    except ConfigError as error:
        yield Problem(key, f"{error.message}; {error.hint}" if error.hint else error.message)
        return
    if key in ("sandbox.memory", "sandbox.disk") and amount < SMALLEST_LIMIT:
        yield Problem(key, f"{text!r} is {amount:g} bytes, too little to work with; write the unit, like 512m")


def _run(config: Config) -> Iterator[Problem]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", config.run.name):
        yield Problem("run.name", f"{config.run.name!r} names a folder: letters, digits, dots, dashes, underscores")
    for key, value in (
        ("run.dir", config.run.dir),
        ("policy.model", config.policy.model),
        ("policy.renderer", config.policy.renderer),
        ("policy.name", config.policy.name),
    ):
        if not value.strip():
            yield Problem(key, "must not be empty")
    if not config.images.base.startswith(BASES):
        yield Problem("images.base", f"{config.images.base!r} must start with {', '.join(BASES)}")


def _tasks(config: Config) -> Iterator[Problem]:
    sources = {"train": config.tasks.train, "eval": config.tasks.eval}
    for part, listed in sources.items():
        for index, source in enumerate(listed):
            yield from _source(f"tasks.{part}[{index}]", source)
    for index, held_out in enumerate(config.tasks.eval):
        for other, trained in enumerate(config.tasks.train):
            if _identity(held_out) == _identity(trained):
                what = f"seed {held_out.seed}" if held_out.source == "family" else held_out.path
                yield Problem(
                    f"tasks.eval[{index}]",
                    f"the same tasks as tasks.train[{other}] ({what}); held-out tasks must not be trained on",
                )


def _source(key: str, source: TaskSource) -> Iterator[Problem]:
    yield from _choice(f"{key}.source", source.source, SOURCES)
    if source.count < 0:
        yield Problem(f"{key}.count", f"must not be negative, and is {source.count}")
    if source.source in ("harbor", "swebench"):
        if not source.path:
            what = "folder of the tasks" if source.source == "harbor" else "file of the rows"
            yield Problem(f"{key}.path", f"source {source.source} needs the {what}")
        if source.name:
            yield Problem(f"{key}.name", "a name belongs to source family")
    if source.source == "family":
        if not source.name:
            yield Problem(f"{key}.name", "source family needs the generator's name")
        if source.count < 1:
            yield Problem(f"{key}.count", "source family needs to be told how many tasks to generate")
        if source.path:
            yield Problem(f"{key}.path", "a path belongs to source harbor")


def _identity(source: TaskSource) -> tuple[object, ...]:
    """What makes two sources the same tasks, however many of them are taken."""
    if source.source == "family":
        return ("family", source.name, source.seed)
    return (source.source, os.path.realpath(source.path))


def _rollout(config: Config) -> Iterator[Problem]:
    if not config.harness:
        yield Problem("harness", "name at least one harness, like tiny-agent: 1.0")
    for name, weight in config.harness.items():
        if weight <= 0:
            yield Problem(f"harness.{name}", f"a weight must be more than 0, and is {weight:g}; leave it out instead")
    rollout, context = config.rollout, config.policy.context
    if rollout.max_output_tokens >= context:
        yield Problem(
            "rollout.max_output_tokens",
            f"{rollout.max_output_tokens} must be less than policy.context ({context}), which holds the prompt as well",
        )
    if 0 < rollout.max_total_tokens < rollout.max_output_tokens:
        yield Problem(
            "rollout.max_total_tokens",
            f"{rollout.max_total_tokens} is less than one call may sample ({rollout.max_output_tokens})",
        )
    if rollout.refill and not rollout.tasks_per_round:
        yield Problem(
            "rollout.refill", "rollout.tasks_per_round=0 puts every task into the round: none is left to join it"
        )
    if config.engine.kind != "scripted" and config.tasks.train and rollout.samples_per_task == 1:
        yield Problem(
            "rollout.samples_per_task",
            "a group of 1 has no advantage to learn from; training needs at least 2",
        )


def _train(config: Config) -> Iterator[Problem]:
    yield from _objective(config)
    correction = config.train.correction
    for key in ("icepop", "geometric"):
        bounds = getattr(correction, key)
        if bounds and not (len(bounds) == 2 and 0 <= bounds[0] < 1 < bounds[1]):
            yield Problem(f"train.correction.{key}", f"must be two bounds around 1, like [0.5, 5], and is {bounds}")
    weights = [key for key in ("token_tis", "sequence_tis", "icepop") if getattr(correction, key)]
    if len(weights) > 1:
        yield Problem(
            f"train.correction.{weights[1]}",
            f"a token has one weight: {' and '.join(weights)} are both set (token_tis: 0 takes the default away)",
        )
    if correction.old == "bypass" and config.train.objective.name not in WITHOUT_RATIO:
        for key in ("sequence_tis", "icepop"):
            if getattr(correction, key):
                yield Problem(
                    f"train.correction.{key}",
                    f"a weight for pi / mu, which with old: bypass {config.train.objective.name}'s own ratio is; masks"
                    " (sequence_mask, geometric, veto) go with it",
                )


def _objective(config: Config) -> Iterator[Problem]:
    objective, correction = config.train.objective, config.train.correction
    if objective.ratio == "trial" and objective.name != "gspo":
        yield Problem("train.objective.ratio", f"one ratio a trial belongs to gspo, not to {objective.name}")
    elif objective.ratio == "trial" and objective.segment_weight == "equal":
        yield Problem(
            "train.objective.segment_weight", "one ratio a trial is over all its tokens alike; equal weighs them unlike"
        )
    if objective.flat_weight != ObjectiveSection().flat_weight and objective.flat != "weigh":
        yield Problem("train.objective.flat_weight", f"belongs to flat: weigh, and flat is {objective.flat}")
    if objective.name in WITHOUT_RATIO:
        for key in ("clip_low", "clip_high"):
            if getattr(objective, key):
                yield Problem(f"train.objective.{key}", f"{objective.name} has no ratio to clip")
        weighs = correction.token_tis or correction.sequence_tis or correction.icepop
        if config.train.minibatches > 1 and not (correction.old == "bypass" and weighs):
            yield Problem(
                "train.minibatches",
                f"{objective.name} has no ratio, so the second mini-batch would be trained on as if the first had not"
                " moved the weights; train.correction.old: bypass weighs it by pi / mu",
            )


def _scale(config: Config) -> Iterator[Problem]:
    deepspeed = config.train.deepspeed
    if config.engine.routing and config.engine.kind == "scripted":
        yield Problem("engine.routing", "what is scripted goes to no experts")
    if config.engine.tensor_parallel > 1 and config.engine.kind != "vllm":
        yield Problem("engine.tensor_parallel", f"only vllm divides a policy, and engine.kind is {config.engine.kind}")
    if config.train.lora.rank and config.train.lora.export == "adapter" and config.engine.kind == "vllm":
        yield Problem("train.lora.export", "adapter: the vllm engine takes over whole weights; write merged")
    if config.train.attention.startswith("flash") and config.engine.dtype == "float32":
        yield Problem("train.attention", f"{config.train.attention} computes in half precision; engine.dtype=bfloat16")
    if deepspeed.offload == "all" and deepspeed.zero != 3:
        yield Problem("train.deepspeed.offload", f"all belongs to ZeRO 3, and train.deepspeed.zero is {deepspeed.zero}")
    if deepspeed.offload == "optimizer" and not deepspeed.zero:
        yield Problem("train.deepspeed.offload", "without ZeRO (train.deepspeed.zero=0) nothing can be offloaded")
    if deepspeed.hostfile and deepspeed.processes:
        yield Problem("train.deepspeed.processes", "the hostfile says how many processes each machine has")


def _optimizers(config: Config) -> Iterator[Problem]:
    for key, section in (("train.optimizer", config.train.optimizer), ("sft.optimizer", config.sft.optimizer)):
        betas = section.betas
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            yield Problem(f"{key}.betas", f"must be two numbers from 0 to below 1, and is {betas}")
        if section.schedule != "constant" and section.horizon <= section.warmup:
            yield Problem(
                f"{key}.horizon", f"schedule {section.schedule} needs the step at which it ends, beyond the warm-up"
            )
