"""From the config's section to an engine; what an engine needs is imported only when it is chosen."""

from __future__ import annotations

import os
from importlib.util import find_spec

from lego.config.schema import EngineSection
from lego.engine.base import Engine
from lego.errors import ConfigError
from lego.units import parse_size


def open_engine(section: EngineSection, context: int | None = None) -> Engine:
    """The engine that `section` names, without a policy: `await engine.load(...)` comes next.

    context: the most tokens of a prompt and its reply, for which vLLM makes room; None is what the model was made for.
    Raises ConfigError for a kind, dtype or device that does not exist here.
    """
    if section.kind == "scripted":
        from lego.engine.scripted import ScriptedEngine

        return ScriptedEngine()
    if section.kind not in ("transformers", "vllm"):
        raise ConfigError(
            f"engine.kind: no such engine: {section.kind}", hint="it is one of transformers, vllm, scripted"
        )
    if section.dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"engine.dtype: {section.dtype} is not float32 or bfloat16")
    if section.device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"engine.device: {section.device} is not auto, cpu or cuda")
    if section.max_concurrent < 1:
        raise ConfigError("engine.max_concurrent: must be at least 1")
    # Read when torch loads. Threads that spin while they wait starve the sandboxes on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    return _vllm(section, context) if section.kind == "vllm" else _transformers(section)


def _transformers(section: EngineSection) -> Engine:
    import torch

    from lego.engine.transformers import TransformersEngine

    if section.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.device: cuda, but torch sees no CUDA device", hint="engine.device: auto")
    return TransformersEngine(
        dtype=section.dtype,
        device=section.device,
        max_concurrent=section.max_concurrent,
        threads=section.threads,
        prefix_bytes=parse_size(section.cache),
        routing=section.routing,
    )


def _vllm(section: EngineSection, context: int | None) -> Engine:
    if find_spec("vllm") is None:
        raise ConfigError(
            "engine.kind: vllm, but vLLM is not installed in this Python's environment",
            hint="tools/vllm.sh makes an environment with it (docs/vllm.md); or engine.kind: transformers",
        )
    from lego.engine.vllm import VllmEngine

    return VllmEngine(
        dtype=section.dtype,
        device=section.device,
        max_concurrent=section.max_concurrent,
        threads=section.threads,
        cache_bytes=parse_size(section.cache),
        routing=section.routing,
        tensor_parallel=section.tensor_parallel,
        context=context,
    )
