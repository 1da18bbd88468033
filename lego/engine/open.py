"""From the config's section to an engine; what an engine needs is imported only when it is chosen."""

from __future__ import annotations

import os

from lego.config.schema import EngineSection
from lego.engine.base import Engine
from lego.errors import ConfigError


def open_engine(section: EngineSection) -> Engine:
    """The engine that `section` names, without a policy: `await engine.load(...)` comes next.

    Raises ConfigError for a kind, dtype or device that does not exist here.
    """
    if section.kind == "scripted":
        from lego.engine.scripted import ScriptedEngine

        return ScriptedEngine()
    if section.kind != "transformers":
        raise ConfigError(f"engine.kind: no such engine: {section.kind}", hint="transformers or scripted")
    if section.dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"engine.dtype: {section.dtype} is not float32 or bfloat16")
    if section.max_concurrent < 1:
        raise ConfigError("engine.max_concurrent: must be at least 1")
    # Read when torch loads. Threads that spin while they wait starve the sandboxes on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    import torch

    from lego.engine.transformers import TransformersEngine

    if section.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device: cuda, but torch sees no CUDA device", hint="engine.device: auto")
    if section.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"engine.device: {section.device} is not auto, cpu or cuda")
    return TransformersEngine(
        dtype=section.dtype,
        device=section.device,
        max_concurrent=section.max_concurrent,
        threads=section.threads,
    )
