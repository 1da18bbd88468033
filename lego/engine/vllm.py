"""vLLM's own engine, driven from this process: token ids in, token ids and processed log-probs out.

The model runs in processes that vLLM starts. What is here: every sampling parameter said out loud, a swap of weights
that waits until what is being generated has ended, and the proof that follows it.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import math
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lego.engine import vllm_start
from lego.engine.base import EngineStats, FloatArray, GenerationRequest, IntArray, PolicyRef, Sampled, Sampling
from lego.engine.policy import context_of, load_model
from lego.engine.routing import RoutingArray, routers
from lego.engine.vllm_probe import Proof, Said, prove
from lego.errors import EngineError

_COLDEST, _HOTTEST = 0.01, 2.0
"""vLLM silently raises lower temperatures to 0.01, and refuses higher ones than 2."""
_PROBE_SEED = 20
_FINISHES: dict[str | None, Literal["stop", "length", "abort"] | None] = {
    None: None, "stop": "stop", "length": "length", "abort": "abort"
}  # fmt: skip


class VllmEngine:
    """dtype: "float32" | "bfloat16". context: tokens of prompt and reply together, at most what the model was made for.
    cache_bytes: memory for the keys and values of conversations. threads: 0 leaves the default (CPU build alone).
    routing: tell which experts tokens went to, all with a reply's last piece; -1 for those taken from the cache.
    tensor_parallel: workers that divide the policy among them, each with cache_bytes of its own.

    vLLM starts with the first `load`. It keeps prefixes by their content, whichever session they belong to. At
    temperature 0 ids are the most probable ones and log-probs those of temperature 1.
    """

    sampler: Literal["policy", "script"] = "policy"

    def __init__(
        self,
        *,
        dtype: str = "float32",
        device: str = "auto",
        max_concurrent: int = 16,
        threads: int = 0,
        cache_bytes: int = 1 << 30,
        context: int | None = None,
        routing: bool = False,
        tensor_parallel: int = 1,
    ) -> None:
        self.policy_version = -1
        self._dtype = dtype
        self._device = device
        self._max_concurrent = max_concurrent
        self._threads = threads
        self._cache_bytes = cache_bytes
        self._wanted_context = context
        self._routing = routing
        self._tensor_parallel = tensor_parallel
        self._context = 0
        self._llm: Any = None
        self._shape = ""
        self._proof: tuple[str, Proof] | None = None
        self._loaded = self._closed = False
        self._names = map(str, itertools.count())
        self._pumps: set[asyncio.Task[None]] = set()
        self._swap = asyncio.Lock()
        self._admits, self._idle = asyncio.Event(), asyncio.Event()
        self._admits.set()
        self._idle.set()
        self._active = 0
        self._counts = {"requests": 0, "prompt_tokens": 0, "sampled_tokens": 0, "reused_tokens": 0}

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Sampled, None]:
        """Stream what is sampled after `prompt_ids`."""
        n, sampling = len(request.prompt_ids), request.sampling
        if n == 0 or sampling.max_tokens < 1:
            raise EngineError(f"request {request.id}: needs a prompt and max_tokens of at least 1", fault="user")
        await self._admitted()
        if n >= self._context:
            raise EngineError(
                f"request {request.id}: a prompt of {n} tokens leaves no room in a context of {self._context}",
                fault="policy",
            )
        with self._running():
            self._counts["requests"] += 1
            self._counts["prompt_tokens"] += n
            async with aclosing(self._sample(request.prompt_ids, sampling)) as pieces:
                async for piece, reused in pieces:
                    self._counts["sampled_tokens"] += len(piece.ids)
                    self._counts["reused_tokens"] += reused
                    yield piece

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        """Asks the sampler itself for each position: the log-probs vLLM gives of a prompt know no temperature."""
        if not 1 <= start < len(ids):
            raise EngineError(f"cannot score from {start} in {len(ids)} ids", fault="user")
        await self._admitted()
        if len(ids) > self._context:
            raise EngineError(f"cannot score {len(ids)} ids in a context of {self._context}", fault="user")
        with self._running():
            scores = await asyncio.gather(
                *(self._score(ids[:i], int(ids[i]), temperature) for i in range(start, len(ids)))
            )
        return np.asarray(scores, np.float32)

    async def load(self, policy: PolicyRef) -> None:
        """Swap weights once running generations have ended (new ones wait). Raises EngineError, and samples no more
        until another load succeeds, when the folder cannot be read or vLLM does not sample from what it holds."""
        self._refuse_unless_open()
        async with self._swap:
            self._admits.clear()
            try:
                await self._idle.wait()
                self._refuse_unless_open()
                self._loaded = False
                await self._load(policy)
                self._loaded = True
            finally:
                if not self._loaded:
                    await self._stop()
                self._admits.set()

    def end_session(self, session: str) -> None:
        """Nothing to do: vLLM drops the prefix that was longest unused when it needs room."""

    def stats(self) -> EngineStats:
        """`running` and `waiting` split what is under way at max_concurrent; short of memory, vLLM runs fewer."""
        running = min(self._active, self._max_concurrent)
        return EngineStats(
            **self._counts,
            running=running,
            waiting=self._active - running,
            extra={"probe_gap": self._proof[1].gap if self._proof else 0.0},
        )

    async def close(self) -> None:
        """Stop; generations under way end in an EngineError. May be called again."""
        self._closed = True
        # Where a request stands in vLLM it cannot be told to end, if it has not got there yet; here it can.
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        await self._stop()

    # -- admission -----------------------------------------------------------------------------------------------

    def _refuse_unless_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    async def _admitted(self) -> None:
        """Wait while weights are swapped. Whoever comes back from it must enter `_running` before the next await."""
        while not self._admits.is_set():
            await self._admits.wait()
        self._refuse_unless_open()
        if not self._loaded:
            raise EngineError("no policy is loaded")

    @contextmanager
    def _running(self) -> Iterator[None]:
        if not self._active:
            self._idle.clear()
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            if not self._active:
                self._idle.set()

    # -- vLLM ----------------------------------------------------------------------------------------------------

    async def _sample(self, prompt: IntArray, sampling: Sampling) -> AsyncGenerator[tuple[Sampled, int], None]:
        """Pieces, each with the prompt tokens that came from the prefix cache (told once)."""
        params = _params(
            sampling.temperature,
            max_tokens=min(sampling.max_tokens, self._context - len(prompt)),
            seed=sampling.seed,
            stop_token_ids=list(sampling.stop_ids),
            logprobs=0,
        )
        told, sampled, name = False, 0, next(self._names)
        async with aclosing(self._outputs(name, prompt, params)) as outputs:
            async for output in outputs:
                (piece,) = output.outputs
                if piece.finish_reason not in _FINISHES:
                    raise EngineError(f"vLLM ended a request with {piece.finish_reason}")
                ids = list(piece.token_ids)
                logprobs = [at[token].logprob for token, at in zip(ids, piece.logprobs or (), strict=True)]
                if not all(map(math.isfinite, logprobs)):
                    raise EngineError(f"policy {self.policy_version} gave a log-probability of {min(logprobs)}")
                reused = 0 if told else output.num_cached_tokens or 0
                told, sampled = True, sampled + len(ids)
                finish = _FINISHES[piece.finish_reason]
                routing = await self._routes(name, len(prompt) + sampled - 1) if finish and self._routing else None
                yield Sampled(ids, logprobs, finish, routing), reused

    async def _routes(self, name: str, tokens: int) -> RoutingArray:
        try:
            shape, data = (await self._llm.collective_rpc("take_routing", args=(name, tokens)))[0]
        except Exception as error:
            raise EngineError(f"vLLM cannot tell which experts a reply's tokens went to: {error!r}") from error
        return np.frombuffer(data, np.int16).reshape(shape)

    async def _score(self, prompt: IntArray, token: int, temperature: float) -> float:
        params = _params(temperature, max_tokens=1, logprob_token_ids=[token])
        async with aclosing(self._outputs(next(self._names), prompt, params)) as outputs:
            async for output in outputs:
                for at in output.outputs[0].logprobs or ():
                    return float(at[token].logprob)
        raise EngineError("vLLM gave no log-probability")

    async def _outputs(self, name: str, prompt: IntArray, params: Any) -> AsyncGenerator[Any, None]:
        """vLLM's outputs; closing this aborts the request."""
        outputs: asyncio.Queue[Any] = asyncio.Queue()
        pump = asyncio.create_task(self._pump(name, prompt, params, outputs))
        # Its end comes last, also where it was cancelled before it began.
        pump.add_done_callback(outputs.put_nowait)
        self._pumps.add(pump)
        try:
            while (output := await outputs.get()) is not pump:
                yield output
            if pump.cancelled():
                raise EngineError("the engine was closed")
            if error := pump.exception():
                raise EngineError(f"vLLM failed: {error.__cause__ or error!r}") from error
        finally:
            self._pumps.discard(pump)
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)

    async def _pump(self, name: str, prompt: IntArray, params: Any, outputs: asyncio.Queue[Any]) -> None:
        """From vLLM into the queue. vLLM aborts what is cancelled."""
        stream = self._llm.generate({"prompt_token_ids": prompt.tolist()}, params, name)
        async with aclosing(stream):
            async for output in stream:
                outputs.put_nowait(output)

    async def _load(self, policy: PolicyRef) -> None:
        model = await asyncio.to_thread(load_model, policy, getattr(torch, self._dtype), torch.device("cpu"))
        limit = context_of(model, policy.path)
        self._context = min(self._wanted_context or limit, limit)
        shape = _shape(policy.path)
        if self._llm is not None:
            # The CPU build multiplies experts by packed copies that a swap does not renew.
            swaps = shape == self._shape and not (routers(model) and vllm_start.cpu_build())
            if self._llm.errored or not swaps:
                await self._stop()
        if self._llm is not None:
            await self._reload(policy)
        else:
            await asyncio.to_thread(self._start, policy.path)
            self._shape = shape
            await self._call("end_with", os.getpid())
            if vllm_start.cpu_build():
                await self._call("take_draws_back")
            if self._routing:
                await self._record_routing()
        before = self._proof[1] if self._proof and self._proof[0] != policy.digest else None
        self._proof = (policy.digest, await prove(model, self._reply, self._context, before))
        self.policy_version = policy.version

    def _start(self, path: str) -> None:
        vllm_start.set_environment(self._threads)
        vllm_start.check_device(self._device)
        self._llm = vllm_start.start(
            path,
            dtype=self._dtype,
            context=self._context,
            max_concurrent=self._max_concurrent,
            cache_bytes=self._cache_bytes,
            routing=self._routing,
            tensor_parallel=self._tensor_parallel,
        )

    async def _stop(self) -> None:
        llm, self._llm, self._proof = self._llm, None, None
        if llm is not None:
            # It would report the end of vLLM's process as a failure.
            if llm.output_handler is not None:
                llm.output_handler.cancel()
            await asyncio.to_thread(llm.shutdown)
            # vLLM's object holds itself; left to the end of the process, it complains there.
            del llm
            gc.collect()

    async def _call(self, method: str, *arguments: str | int) -> None:
        """A method of `vllm_worker.TakeOver`."""
        await self._llm.collective_rpc(method, args=arguments)

    async def _record_routing(self) -> None:
        try:
            await self._call("record_routing")
        except Exception as error:
            raise EngineError(f"engine.routing: {error}", hint="engine.routing: false", fault="user") from error

    async def _reload(self, policy: PolicyRef) -> None:
        try:
            await self._call("take_over", policy.path)
            emptied = await self._llm.reset_prefix_cache()
        except Exception as error:
            raise EngineError(f"vLLM cannot take over policy {policy.version} from {policy.path}: {error!r}") from error
        if not emptied:
            raise EngineError("vLLM keeps prefixes of the policy before: it says that requests still run")

    async def _reply(self, prompt: IntArray, tokens: int, temperature: float) -> Said:
        ids: list[int] = []
        logprobs: list[float] = []
        routing = None
        async for piece, _ in self._sample(prompt, Sampling(tokens, temperature, seed=_PROBE_SEED)):
            ids += piece.ids
            logprobs += piece.logprobs
            routing = piece.routing
        return Said(ids, logprobs, routing)


def _params(temperature: float, **more: Any) -> Any:
    """vLLM's sampling parameters: softmax(logits / temperature), not cut and not bent in any way."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    if temperature and not _COLDEST <= temperature <= _HOTTEST:
        raise EngineError(
            f"vLLM cannot sample at temperature {temperature:g}", hint=f"0, or {_COLDEST} to {_HOTTEST:g}", fault="user"
        )
    return SamplingParams(
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        min_tokens=0,
        # What ends a reply is for the caller to say, not for the folder's generation_config.json.
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        **more,
    )


def _shape(path: str) -> str:
    """What must not differ between two folders for weights to be swapped in place."""
    return json.dumps(json.loads((Path(path) / "config.json").read_text()), sort_keys=True)
