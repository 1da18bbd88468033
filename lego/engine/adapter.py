"""Policies that are an adapter (LoRA) on a base: how their folder looks, and how the two become one.

Such a folder has `adapter/`, as peft writes it, beside `base.json`, which names the base. It may hold the merged
weights as well; one that does not is read as its base plus what the adapter adds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lego.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

ADAPTER_FOLDER = "adapter"
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BASE_FILE = "base.json"
PEFT_PREFIX = "base_model.model."
"""What peft writes before the names of the model."""
WEIGHT_SUFFIXES = (".safetensors", ".bin", ".gguf")


@dataclass(frozen=True)
class Base:
    """What an adapter stands on: path as the run database has it, digest of that folder; lora: the train.lora section
    that shaped the adapter, without how it is exported."""

    path: str
    digest: str
    lora: dict[str, Any] = field(default_factory=dict)


def base_of(folder: Path | str) -> Base | None:
    """The base of an adapter's folder; None for any other. Raises EngineError where the file is damaged."""
    file = Path(folder) / BASE_FILE
    if not file.is_file():
        return None
    try:
        return Base(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise EngineError(f"{file} cannot be read: {error}", hint="is the checkpoint complete?") from error


def unmerged(folder: Path | str) -> Base | None:
    """The base of a folder that holds an adapter and no weights of its own; None for any other."""
    if any(file.suffix in WEIGHT_SUFFIXES for file in Path(folder).glob("*")):
        return None
    return base_of(folder)


def bases(folder: Path | str) -> Iterator[Base]:
    """What a folder without weights of its own stands on: its base, and that one's, if it is an adapter alone as well.
    Raises EngineError where one is gone."""
    while base := unmerged(folder):
        if not Path(base.path).is_dir():
            raise EngineError(
                f"{folder} is an adapter on {base.path}, which is not there", hint="put its base back where it was"
            )
        yield base
        folder = base.path


def product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """What an adapter adds to a matrix, [out, in] float32: scale * b @ a, of a [rank, in] and b [out, rank]."""
    return (b.float() @ a.float()) * scale


def read_model(folder: Path | str, dtype: Any) -> tuple[Any, dict[str, Any]]:
    """transformers' model of a policy's folder and what it reports of the loading, an adapter merged into its base.

    Merging is in float32 whatever `dtype` is, so that the weights are those of the merged export. Raises EngineError
    where the base is gone, and what transformers raises.
    """
    import torch
    from transformers import AutoModelForCausalLM

    how: dict[str, Any] = {"local_files_only": True, "output_loading_info": True}
    base = next(bases(folder), None)
    if base is None:
        whole: tuple[Any, dict[str, Any]] = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **how)
        return whole
    model, report = read_model(base.path, torch.float32)
    _merge(model, Path(folder) / ADAPTER_FOLDER)
    if dtype == torch.float32:
        return model, report
    # transformers keeps some weights of some families in float32 whatever is asked for: it decides here, too.
    return type(model).from_pretrained(
        None, config=model.config, state_dict=model.state_dict(), dtype=dtype, output_loading_info=True
    )


def _merge(model: Any, folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    try:
        shape = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / ADAPTER_WEIGHTS)
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder} cannot be read: {error}", hint="is the checkpoint complete?") from error
    scale = shape["lora_alpha"] / shape["r"]
    end = ".lora_A.weight"
    for name in sorted(weights):
        if name.endswith(end):
            stem = name.removesuffix(end)
            matrix = model.get_parameter(f"{stem.removeprefix(PEFT_PREFIX)}.weight")
            if hasattr(matrix, "ds_id"):
                raise EngineError(
                    f"{folder.parent} holds an adapter alone, which ZeRO 3 cannot merge as it divides the weights",
                    hint="train.deepspeed.zero=2, or begin from a merged policy (train.lora.export=merged)",
                )
            with torch.no_grad():
                matrix += product(weights[name], weights[f"{stem}.lora_B.weight"], scale)
