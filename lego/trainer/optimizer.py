"""AdamW with linear warm-up, and its state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from lego.config.schema import OptimizerSection
from lego.errors import TrainerError

_START_FRESH = "remove it to start with fresh moments"


class Optimizer:
    """AdamW over a model's parameters. `steps` counts the steps taken; weight decay spares vectors (norms, biases)."""

    def __init__(self, model: nn.Module, section: OptimizerSection) -> None:
        self.section = section
        self.steps = 0
        self.slow_down = 1.0
        """Share of the learning rate that is used, for who wants it to fall."""
        self._named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        decayed = [p for _, p in self._named if p.ndim >= 2]
        spared = [p for _, p in self._named if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": section.weight_decay}, {"params": spared, "weight_decay": 0.0}]
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=section.lr, betas=(section.betas[0], section.betas[1])
        )

    @property
    def lr(self) -> float:
        """The learning rate of the next step: linear from lr / warmup to lr, then constant but for `slow_down`."""
        warmup = self.section.warmup
        return self.section.lr * self.slow_down * (min(1.0, (self.steps + 1) / warmup) if warmup else 1.0)

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

    def save(self, path: Path) -> None:
        names = [name for name, _ in self._named]
        torch.save({"steps": self.steps, "parameters": names, "adam": self._adam.state_dict()["state"]}, path)

    def load(self, path: Path) -> None:
        """Take up moments and step count; learning rate, betas and decay stay those of the config, which may change.

        Raises TrainerError if the file is damaged or of another model.
        """
        try:
            saved: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
            names, state = saved["parameters"], saved["adam"]
            steps = int(saved["steps"])
        except (OSError, RuntimeError, KeyError, EOFError, ValueError, TypeError) as error:
            raise TrainerError(f"{path} cannot be read: {error}", hint=_START_FRESH) from error
        if names != [name for name, _ in self._named]:
            raise TrainerError(f"{path} belongs to another model", hint=_START_FRESH)
        whole = self._adam.state_dict()
        self._adam.load_state_dict({"state": state, "param_groups": whole["param_groups"]})
        self.steps = steps
