"""vLLM brought up in this process: its environment, its arguments, its engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lego.errors import ConfigError, EngineError


def set_environment(threads: int) -> None:
    """What vLLM reads from the environment, here and in the processes it starts. Call before vLLM is imported."""
    wanted = {
        # A process forked from one with threads and an event loop inherits their locks, held.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore::FutureWarning,ignore::UserWarning:multiprocessing.resource_tracker",
        # One process for the scheduler and the model; the CPU build would start one each.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # By default its threads are pinned to cores, on which the sandboxes have to run as well.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)


def check_device(device: str) -> None:
    """Raises ConfigError where vLLM cannot be imported, or was built for another device than the one asked for."""
    try:
        from vllm.platforms import current_platform
    except Exception as error:
        raise ConfigError(
            f"engine.kind: vllm, but it cannot be imported: {error!r}", hint="see docs/vllm.md"
        ) from error
    found = "cpu" if current_platform.is_cpu() else "cuda" if current_platform.is_cuda() else ""
    if not found:
        raise ConfigError(
            "engine.kind: vllm, but it finds neither a CUDA device nor its CPU build", hint="docs/vllm.md"
        )
    if device not in ("auto", found):
        raise ConfigError(f"engine.device: {device}, but this vLLM runs on {found}", hint="engine.device: auto")


def cpu_build() -> bool:
    """Whether this vLLM is the one for CPUs. Call after vLLM has started."""
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())


def start(
    path: str,
    *,
    dtype: str,
    context: int,
    max_concurrent: int,
    cache_bytes: int,
    routing: bool,
    tensor_parallel: int,
) -> Any:
    """An AsyncLLM that serves the folder `path`. Blocks until it is up; must not run in an event loop's thread.

    routing: start it so that `vllm_worker.TakeOver.record_routing` can work.
    tensor_parallel: workers, each with its part of the policy and `cache_bytes` for its part of the cache.
    Raises EngineError when it does not come up.
    """
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    if routing:
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the other one keeps its batch in another shape
    arguments = AsyncEngineArgs(
        model=path,
        dtype=dtype,
        max_model_len=context,
        max_num_seqs=max_concurrent,
        kv_cache_memory_bytes=cache_bytes,
        # No more than a check at the start, where the cache's size is given.
        gpu_memory_utilization=0.1,
        enable_prefix_caching=True,
        tensor_parallel_size=tensor_parallel,
        logprobs_mode="processed_logprobs",
        skip_tokenizer_init=True,
        worker_extension_cls="lego.engine.vllm_worker.TakeOver",
        # A folder's generation_config.json would bring in its own top_p, top_k and temperature.
        generation_config="vllm",
        # Compiling for the CPU takes a minute and gains a tiny model nothing.
        enforce_eager=current_platform.is_cpu() or routing,
        use_tqdm_on_load=False,
        disable_log_stats=True,
        enable_log_requests=False,
    )
    try:
        return AsyncLLM.from_engine_args(arguments)
    except Exception as error:
        raise EngineError(
            f"vLLM does not start with {Path(path)}: {_said(error)}",
            hint="its own messages stand above; engine.cache must hold one sequence of policy.context tokens",
        ) from error


def _said(error: Exception) -> str:
    """In one line; what checks its arguments wraps the reason in several."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return str(error.errors()[0]["msg"]).removeprefix("Value error, ")
    return " ".join(str(error).split())
