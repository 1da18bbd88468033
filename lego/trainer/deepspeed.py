"""A policy and its optimizer under DeepSpeed: ZeRO 0 to 3, offloaded or not, with the same face as the plain ones.

Weights stay float32, as in lego.trainer.policy; bfloat16 is the arithmetic's. The optimizer's state on disk is the
plain optimizer's too, whole, so that the next step may use another number of processes, another stage, or none of it.
"""

from __future__ import annotations

import functools
import os
import sysconfig
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.utils import safe_get_full_optimizer_state
from deepspeed.utils.tensor_fragment import safe_set_full_optimizer_state, safe_set_local_optimizer_state
from torch import Tensor, nn

from lego.config.schema import OptimizerSection, TrainSection
from lego.errors import ConfigError, TrainerError
from lego.trainer.batch import Batch, TrainSegment, pack
from lego.trainer.checkpoint import laid_out
from lego.trainer.optimizer import MOMENTS, Paced, decayed_first, read_state, whole_shape
from lego.trainer.policy import NO_CUDA, NO_CUDA_HINT, Policy, Scored
from lego.trainer.ranks import Gang

_PATIENCE = timedelta(hours=4)
"""How long a process waits for the others: while the first writes a large policy to a slow disk, they have nothing to
do. Of one that died the launcher tells at once."""

WHOLE = 10_000
"""Elements up to which ZeRO 3 leaves a weight whole in each process: gathering a norm costs more than it takes room."""


def settings(section: TrainSection, *, trains: bool = True) -> dict[str, Any]:
    """DeepSpeed's own configuration. Gradients add up until lego says that a step is due; schedule and state are
    lego's."""
    stage, offload = section.deepspeed.zero, section.deepspeed.offload
    zero: dict[str, Any] = {"stage": stage, "stage3_param_persistence_threshold": WHOLE}
    if offload != "none" and trains:
        zero["offload_optimizer"] = {"device": "cpu"}
    if offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "managed_gradient_accumulation": False,
        "gradient_clipping": section.optimizer.max_grad_norm if stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 1 << 62,
    }


class _Whole(nn.Module):
    """What DeepSpeed takes for the model: all of a forward pass, so that its hooks stand around all of it."""

    def __init__(self, model: nn.Module, score: Callable[..., Scored]) -> None:
        super().__init__()
        self.model = model
        self._score = score

    def forward(self, batch: Batch, temperature: float, entropy: bool, balance: bool) -> tuple[Tensor | None, ...]:
        scored = self._score(batch, temperature, entropy, balance)
        return scored.logp, scored.entropy, scored.balance


class ShardedPolicy(Policy):
    """As Policy, its weights held by DeepSpeed. trains: with an optimizer; else (a reference) it is only scored.

    torch.distributed must have been set up; every process makes, scores and saves it at the same time.
    """

    def __init__(
        self, folder: Path, section: TrainSection, *, dtype: str, device: str, trains: bool = True, seed: int = 0
    ) -> None:
        self._section, self._trains = section, trains
        self._sharded = section.deepspeed.zero == 3
        self.gang = Gang()
        if self._sharded:
            from transformers.integrations import HfDeepSpeedConfig

            # While this object lives, transformers loads each process its part of the weights and no more.
            self._loads_in_parts = HfDeepSpeedConfig(settings(section, trains=trains))
        layers = section.checkpoint_layers and trains
        lora = section.lora if trains else None
        how: Any = {"dtype": dtype, "device": device, "attention": section.attention}
        super().__init__(folder, checkpoint_layers=layers, lora=lora, seed=seed, **how)
        if self._sharded and isinstance(self._head, nn.Linear):
            # The head's matrix is used outside of the head's own forward pass.
            for parameter in self._head.parameters(recurse=False):
                deepspeed.zero.register_external_parameter(self.engine.module, parameter)
        self.ranks = self.gang

    def _place(self, model: Any) -> Any:
        if self._sharded:
            _name_strays(model)
            _keep_names(model)
        else:
            model.to(self.device)
        whole = _Whole(model, functools.partial(Policy.score, self))
        optimizer = _adam(decayed_first(model), self._section) if self._trains else None
        config = settings(self._section, trains=self._trains)
        self.engine = deepspeed.initialize(model=whole, optimizer=optimizer, config=config)[0]
        if not self._section.deepspeed.zero:
            self.engine.enable_backward_allreduce = False  # ours comes before the gradient is measured
        return model

    @property
    def vocabulary(self) -> int:
        return int(whole_shape(self.model.get_input_embeddings().weight)[0])

    def score(self, batch: Batch, temperature: float, entropy: bool = False, balance: bool = False) -> Scored:
        return Scored(*self.engine(batch, temperature, entropy, balance))

    def backward(self, loss: Tensor, counts: bool = True) -> None:
        # DeepSpeed averages over the processes; the loss's parts are to be added up.
        self.engine.backward(loss * (self.gang.size if counts else 0.0))

    def save(self, folder: Path | None) -> None:
        """folder: None on every process but the first, which then only gives its part. What is gathered lies in files
        of `folder` until it is written: a host that holds a part for each GPU has no room for the whole beside them."""
        whole: dict[int, Tensor] = {}
        merges = self.adapter is None or self.adapter.merges
        for parameter in self.model.parameters():
            if not (merges or parameter.requires_grad):
                continue
            with deepspeed.zero.GatheredParameters([parameter], enabled=self._sharded):
                if folder is not None:
                    whole[id(parameter)] = laid_out(parameter.detach(), folder)
        if folder is not None:
            # What is tied stays one tensor under two names.
            every = dict(self.model.named_parameters(remove_duplicate=False))
            named = {name: whole[id(p)] for name, p in every.items() if id(p) in whole}
            others = {name: value for name, value in self.model.state_dict().items() if name not in every}
            self._write(folder, named | others)


class ShardedOptimizer(Paced):
    """As lego.trainer.optimizer.Optimizer. DeepSpeed measures, clips and steps at once, so `clip` does it all.

    A step on a gradient that is not finite cannot be taken back here: it must not be saved.
    """

    def __init__(self, policy: ShardedPolicy, section: OptimizerSection) -> None:
        super().__init__(section)
        self._policy, self._engine = policy, policy.engine
        self._stage = policy.engine.zero_optimization_stage()
        self._groups = decayed_first(policy.model)
        self._names = [name for name, p in policy.model.named_parameters() if p.requires_grad]

    def clip(self) -> float:
        return self._step(self.lr)

    def step(self) -> None:
        self.steps += 1

    def forget(self) -> None:
        """Nothing to do: what was refused is never stepped on in this process."""

    def _step(self, lr: float) -> float:
        for group in self._engine.optimizer.param_groups:
            group["lr"] = lr
        norm = None
        if not self._stage:
            self._engine.buffered_allreduce_fallback()
            bound = self.section.max_grad_norm or float("inf")
            norm = nn.utils.clip_grad_norm_([p for group in self._groups for p in group], bound)
        self._engine.step()
        if self._stage:
            norm = self._engine.get_global_grad_norm()
        return float("nan") if norm is None else float(norm)

    def save(self, path: Path | None) -> None:
        """path: None on every process but the first. Gathered as weights are."""
        self._find_moments()
        state: dict[int, dict[str, Tensor]] = {}
        for number, parameter in enumerate(p for group in self._groups for p in group):
            moments = {name: self._full(parameter, name) for name in MOMENTS}
            if path is not None:
                kept = {name: laid_out(value.detach().float(), path.parent) for name, value in moments.items()}
                state[number] = {"step": torch.tensor(float(self.steps)), **kept}
        if path is not None:
            torch.save({"steps": self.steps, "before": self.before, "parameters": self._names, "adam": state}, path)

    def load(self, path: Path) -> None:
        """As Optimizer.load."""
        steps, before, state = read_state(path, self._policy.model)
        self._prime()
        for number, parameter in enumerate(p for group in self._groups for p in group):
            for name in MOMENTS:
                self._set(parameter, name, state[number][name])
        for held in self._engine.basic_optimizer.state.values():
            held["step"] = torch.full_like(held["step"], steps) if isinstance(held["step"], Tensor) else steps
        self.steps, self.before = steps, before

    def _prime(self) -> None:
        """A step of nothing at all, so that the moments have their places."""
        ids, nothing = np.zeros(2, np.int32), np.zeros(2, np.float32)
        segment = TrainSegment(0, ids, np.array([False, True]), nothing)
        (batch,) = pack([segment], 2, self._policy.layout(False))
        scored = self._policy.score(batch.to(self._policy.device), 1.0)
        self._policy.backward(scored.logp.sum(), counts=False)
        self._step(0.0)
        self._find_moments()

    def _find_moments(self) -> None:
        """Have ZeRO 1 and 2 look where their moments are. By itself DeepSpeed does so within the first step, once the
        first group of parameters has moments and the second not yet."""
        if self._stage in (1, 2):
            self._engine.optimizer._hp_optimizer_states_linked = False
            self._engine.optimizer._lazy_init_hp_params_optimizer_state()

    def _full(self, parameter: nn.Parameter, name: str) -> Tensor:
        if not self._stage:
            held: Tensor = self._engine.basic_optimizer.state[parameter][name]
            return held
        full: Tensor = safe_get_full_optimizer_state(parameter, name)
        return full

    def _set(self, parameter: Any, name: str, value: Tensor) -> None:
        if self._stage == 3:
            part = parameter.ds_tensor.numel()
            gang = self._policy.gang
            padded = nn.functional.pad(value.flatten(), (0, part * gang.size - value.numel()))
            safe_set_local_optimizer_state(parameter, padded[part * gang.rank : part * (gang.rank + 1)], name)
        elif self._stage:
            safe_set_full_optimizer_state(parameter, value, name)
        else:
            self._engine.basic_optimizer.state[parameter][name].copy_(value)


def _adam(groups: list[list[nn.Parameter]], section: TrainSection) -> torch.optim.Optimizer:
    optimizer = section.optimizer
    listed = [
        {"params": group, "weight_decay": decay}
        for group, decay in zip(groups, (optimizer.weight_decay, 0.0), strict=True)
        if group
    ]
    betas = (optimizer.betas[0], optimizer.betas[1])
    if section.deepspeed.offload == "none":
        return torch.optim.AdamW(listed, lr=optimizer.lr, betas=betas)
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    # The ninja that came with DeepSpeed stands beside Python; no shell may have been told of that place.
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    try:
        return DeepSpeedCPUAdam(listed, lr=optimizer.lr, betas=betas, adamw_mode=True)  # type: ignore[no-any-return]
    except Exception as error:
        raise TrainerError(
            f"DeepSpeed cannot build its optimizer for offloading: {str(error).strip().splitlines()[-1]}",
            hint="it is compiled on first use, with g++ and ninja; or set train.deepspeed.offload=none",
        ) from error


def _name_strays(model: nn.Module) -> None:
    """Tell ZeRO 3 of weights that are used outside of their own module: linear attention takes its convolution's."""
    for module in model.modules():
        convolution = getattr(module, "conv1d", None)
        if isinstance(convolution, nn.Module):
            for parameter in convolution.parameters(recurse=False):
                deepspeed.zero.register_external_parameter(module, parameter)


def _keep_names(model: Any) -> None:
    """Have a policy written under the names that it was read under: what loads divided weights takes every renaming
    that transformers knows for the class to have happened, and writing undoes them all."""
    renamings = getattr(model, "_weight_conversions", None)
    if renamings is not None:
        model._weight_conversions = [renaming for renaming in renamings if renaming.was_used()]


def prepare(wanted: str, environment: Mapping[str, str] = os.environ) -> str:
    """Join the processes that the launcher started; returns the device of this one. wanted: auto, cpu or cuda.

    Raises ConfigError where there is no such device.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError(NO_CUDA, hint=NO_CUDA_HINT)
    if wanted != "cpu" and torch.cuda.is_available():
        device = f"cuda:{environment.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
        deepspeed.init_distributed("nccl", timeout=_PATIENCE)
    else:
        device = "cpu"
        # An extension for shared memory would be compiled, for minutes; gloo does without.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed("gloo", timeout=_PATIENCE)
    return device


def open_backend(
    folder: Path, reference: Path | None, section: TrainSection, dtype: str, device: str, seed: int
) -> tuple[Policy, Policy | None, ShardedOptimizer]:
    """Policy, reference and optimizer under DeepSpeed, for lego.trainer.step.Trainer."""
    policy = ShardedPolicy(folder, section, dtype=dtype, device=device, seed=seed)
    held: Policy | None = None
    if reference and policy.adapter and policy.adapter.is_base(reference):
        held = policy
    elif reference and section.deepspeed.zero == 3:
        held = ShardedPolicy(reference, section, dtype=dtype, device=device, trains=False)
    elif reference:
        # Without an optimizer there is nothing that the lower stages divide; but the work is, as the policy's is.
        held = Policy(reference, dtype=dtype, device=device, attention=section.attention)
        held.ranks = policy.ranks
    return policy, held, ShardedOptimizer(policy, section.optimizer)
