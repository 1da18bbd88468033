"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv:2106.09685) on a policy's linear layers, through peft.

peft puts its layers into the model in place of linear ones: the model keeps its class, so that everything else in the
trainer (layout, attention, head, DeepSpeed) sees the model that it knows. The base's weights are never moved; what is
trained, clipped, stored and resumed is the adapter alone.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lego.config.schema import LoraSection
from lego.engine.adapter import (
    ADAPTER_CONFIG,
    ADAPTER_FOLDER,
    ADAPTER_WEIGHTS,
    BASE_FILE,
    PEFT_PREFIX,
    Base,
    base_of,
    product,
)
from lego.engine.digest import folder_digest
from lego.engine.routing import routers
from lego.errors import ConfigError, TrainerError
from lego.trainer.checkpoint import OPTIMIZER_FILE

_NAME = "default"
"""What peft calls the adapter."""
_BASE = ".base_layer."
"""What peft writes into the names of what an adapted layer had before."""


class Adapter:
    """The adapter of one model.

    folder: a policy's. Where it holds an adapter of the shape that `section` asks for, that one is taken up on the base
    it stands on; else the policy itself is the base of a new one, which adds nothing yet. seed: of a new one.
    Made in two steps, since the model is loaded between them: `source` says from where; `enter` puts the adapter in.
    """

    def __init__(self, folder: Path, section: LoraSection, seed: int) -> None:
        if find_spec("peft") is None:
            raise ConfigError("train.lora.rank is set, and peft is not installed", hint="pip install 'lego[train]'")
        self._folder, self._section, self._seed = folder, section, seed
        kept = base_of(folder)
        self._kept = kept if kept and kept.lora == _shape(section) else None
        if self._kept and not Path(self._kept.path).is_dir():
            raise TrainerError(
                f"{folder} is an adapter on {self._kept.path}, which is not there",
                hint="put its base back where it was",
            )
        self.source = Path(self._kept.path) if self._kept else folder
        """The folder of the base."""

    def enter(self, model: Any) -> None:
        """Put the adapter into `model`, the base as it was loaded. Raises ConfigError for targets it does not have."""
        from peft import LoraConfig, inject_adapter_in_model

        section = self._section
        self._config = LoraConfig(
            r=section.rank, lora_alpha=section.alpha, target_modules=target_names(model, section.targets),
            base_model_name_or_path=str(self.source), task_type="CAUSAL_LM",
        )  # fmt: skip
        # Alike in every process, and in a step that is taken again.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            inject_adapter_in_model(self._config, model, _NAME)
        self._layers = [module for module in model.modules() if hasattr(module, "set_scale")]
        if self._kept:
            self._take_up(model)

    def is_base(self, folder: Path) -> bool:
        """Whether `folder` is what the adapter stands on."""
        return self.source.resolve() == folder.resolve()

    @contextmanager
    def off(self) -> Iterator[None]:
        """The base alone, exactly: what the adapter adds is multiplied by 0."""
        for layer in self._layers:
            layer.set_scale(_NAME, 0.0)
        try:
            yield
        finally:
            for layer in self._layers:
                layer.set_scale(_NAME, 1.0)

    @property
    def merges(self) -> bool:
        """Whether policies are written with whole weights."""
        return self._section.export == "merged"

    def write(self, folder: Path, model: Any, state: Mapping[str, Tensor]) -> None:
        """Write what the policy is made of: the adapter as peft does, its base's name, and the merged weights if asked.

        state: whole tensors, by the names that they have in the adapted model; without the base's where they are not
        merged.
        """
        from safetensors.torch import save_file

        where = folder / ADAPTER_FOLDER
        where.mkdir()
        trained = {name: value for name, value in state.items() if ".lora_" in name}
        named = {PEFT_PREFIX + name.replace(f".{_NAME}.", "."): value.contiguous() for name, value in trained.items()}
        save_file(named, where / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        self._config.save_pretrained(str(where))
        digest = self._kept.digest if self._kept else folder_digest(self.source)
        base = Base(str(self.source), digest, _shape(self._section))
        (folder / BASE_FILE).write_text(json.dumps(asdict(base), indent=2) + "\n", encoding="utf-8")
        if self.merges:
            model.save_pretrained(folder, state_dict=merged(state, self._section.alpha / self._section.rank))
        else:
            model.config.save_pretrained(folder)
            model.generation_config.save_pretrained(folder)

    def _take_up(self, model: Any) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        file = self._folder / ADAPTER_FOLDER / ADAPTER_WEIGHTS
        wanted = {name: p for name, p in model.named_parameters() if p.requires_grad}
        try:
            kept = load_file(file)
        except (OSError, SafetensorError) as error:
            raise TrainerError(f"{file} cannot be read: {error}", hint="is the checkpoint complete?") from error
        names = {name: PEFT_PREFIX + name.replace(f".{_NAME}.", ".") for name in wanted}
        if set(names.values()) != kept.keys() or any(kept[names[n]].shape != p.shape for n, p in wanted.items()):
            raise TrainerError(f"{file} belongs to another base than {self.source}", hint=f"{ADAPTER_CONFIG} beside it")
        with torch.no_grad():
            for name, parameter in wanted.items():
                parameter.copy_(kept[names[name]])


def target_names(model: nn.Module, wanted: list[str]) -> list[str]:
    """The names of the linear layers to adapt: those wanted, or all that there are. The output layer is none of them
    (its log-probs are taken from its matrix), nor is a router, whose choices are replayed, not learnt.

    Raises ConfigError for a name that no such layer has.
    """
    spared = {id(module) for router in routers(model) for module in router.modules()}
    spared.add(id(model.get_output_embeddings()))  # type: ignore[operator]
    known = sorted(
        {
            name.rpartition(".")[2]
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and id(module) not in spared
        }
    )
    for name in wanted:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise ConfigError(f"train.lora.targets: this model has no linear layer {name!r} to adapt; {advice}")
    return wanted or known


def merged(state: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The weights of the plain model whose layers do what the adapted ones do, by its names.

    state: an adapted model's whole tensors. What has no adapter is taken as it is, tied tensors stay one.
    """
    plain: dict[str, Tensor] = {}
    for name, value in state.items():
        if ".lora_" in name:
            continue
        if name.endswith(f"{_BASE}weight"):
            stem = name.removesuffix(f"{_BASE}weight")
            added = product(state[f"{stem}.lora_A.{_NAME}.weight"], state[f"{stem}.lora_B.{_NAME}.weight"], scale)
            value = value + added
        plain[name.replace(_BASE, ".")] = value
    return plain


def new_optimizer(folder: Path, section: LoraSection) -> str:
    """Why the optimizer's state beside the policy in `folder` is not gone on with, in one line: it belongs to what
    another train.lora had trained. Empty where it is, and where there is none.
    """
    kept = base_of(folder)
    before, now = kept.lora if kept else {}, _shape(section) if section.rank else {}
    if before == now or not (folder / OPTIMIZER_FILE).is_file():
        return ""
    return f"a new optimizer begins: train.lora was {_told(before)} and is {_told(now)}"


def _told(shape: Mapping[str, Any]) -> str:
    if not shape:
        return "off"
    return f"rank {shape['rank']}, alpha {shape['alpha']:g}, {', '.join(shape['targets']) or 'all layers'}"


def _shape(section: LoraSection) -> dict[str, Any]:
    """What of the section decides which numbers an adapter has and what they do."""
    return {"rank": section.rank, "alpha": section.alpha, "targets": sorted(section.targets)}
