"""AdamW, its learning rate from step to step, and its state on disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from lego.config.schema import OptimizerSection
from lego.errors import TrainerError

_START_FRESH = "remove it to start with fresh moments"


MOMENTS = ("exp_avg", "exp_avg_sq")


class Paced:
    """`steps` counts the steps taken, `before` those of the optimizers that this one came in the place of; they alone,
    with the section, decide the learning rate."""

    def __init__(self, section: OptimizerSection) -> None:
        self.section = section
        self.steps = 0
        self.before = 0
        self.slow_down = 1.0
        """Share of the learning rate that is used, for who wants it to fall."""

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self.section.lr * self.slow_down * pace(self.section, self.steps, self.before)


def pace(section: OptimizerSection, steps: int, before: int = 0) -> float:
    """Share of the learning rate that the step after `steps` steps uses: linear from 1 / warmup to 1, then falling to
    `floor` at `horizon`, by the schedule. An optimizer that took the place of others, after `before` steps, is warmed
    up like any, and the schedule goes on."""
    warm = min(1.0, (steps + 1) / max(1, section.warmup))
    if section.schedule == "constant":
        return warm
    done = min(1.0, max(0.0, (before + steps + 1 - section.warmup) / (section.horizon - section.warmup)))
    left = 1.0 - done if section.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return warm * (section.floor + (1.0 - section.floor) * left)


def whole_shape(parameter: nn.Parameter) -> tuple[int, ...]:
    """What DeepSpeed has divided is flat; it remembers its shape."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def decayed_first(model: nn.Module) -> list[list[nn.Parameter]]:
    """The parameters that are trained, in the two groups of the optimizer's state: those that weight decay applies to,
    and those it spares (norms, biases)."""
    named = [p for p in model.parameters() if p.requires_grad]
    decayed = [len(whole_shape(p)) >= 2 for p in named]
    both = list(zip(named, decayed, strict=True))
    return [[p for p, is_decayed in both if is_decayed is wanted] for wanted in (True, False)]


class Kept(NamedTuple):
    """What is on disk of an optimizer: `steps` and `before` as in `Paced`, AdamW's state by the place of a parameter in
    `decayed_first`."""

    steps: int
    before: int
    adam: dict[int, Any]


def read_state(path: Path, model: nn.Module) -> Kept:
    """The state of an optimizer over `model`.

    Raises TrainerError if the file is damaged or of another model.
    """
    try:
        saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        known, kept = saved["parameters"], Kept(int(saved["steps"]), int(saved.get("before", 0)), saved["adam"])
        shapes = {number: {tuple(held[moment].shape) for moment in MOMENTS} for number, held in kept.adam.items()}
    except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError) as error:
        raise TrainerError(f"{path} cannot be read: {error}", hint=_START_FRESH) from error
    wanted = [whole_shape(p) for group in decayed_first(model) for p in group]
    same = known == [name for name, p in model.named_parameters() if p.requires_grad]
    if not same or any(found != {wanted[number]} for number, found in shapes.items()):
        raise TrainerError(f"{path} belongs to another model", hint=_START_FRESH)
    return kept


class Optimizer(Paced):
    """AdamW over a model's parameters."""

    def __init__(self, model: nn.Module, section: OptimizerSection) -> None:
        super().__init__(section)
        self._model = model
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        groups = [
            {"params": group, "weight_decay": decay}
            for group, decay in zip(decayed_first(model), (section.weight_decay, 0.0), strict=True)
        ]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=section.lr, betas=(section.betas[0], section.betas[1])
        )

    def clip(self) -> float:
        """Clip the gradient to max_grad_norm (0 = leave it) and return its norm before that."""
        bound = self.section.max_grad_norm or float("inf")
        return float(nn.utils.clip_grad_norm_([p for _, p in self._named], bound))

    def step(self) -> None:
        for group in self._adam.param_groups:
            group["lr"] = self.lr
        self._adam.step()
        self.steps += 1
        self.forget()

    def forget(self) -> None:
        """Drop the gradient."""
        self._adam.zero_grad(set_to_none=True)

    def save(self, path: Path | None) -> None:
        """path: as in Policy.save."""
        names = [name for name, _ in self._named]
        if path is not None:
            state = self._adam.state_dict()["state"]
            torch.save({"steps": self.steps, "before": self.before, "parameters": names, "adam": state}, path)

    def load(self, path: Path) -> None:
        """Take up moments and step count; learning rate, betas and decay stay those of the config, which may change.

        Raises TrainerError as `read_state` does.
        """
        self.steps, self.before, state = read_state(path, self._model)
        whole = self._adam.state_dict()
        self._adam.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
