"""The embedded engine: a Hugging Face model in this process, concurrent requests decoded together.

One worker thread owns the model. Coroutines hand it requests and get one event a step back; scoring runs between
two steps, and a swap of weights waits until what is being generated has ended, so that no reply is sampled from two
policies.
"""

from __future__ import annotations

import asyncio
import math
import queue
import random
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Literal

import numpy as np
import torch
from transformers import PreTrainedModel

from lego.engine.base import EngineStats, Finish, FloatArray, GenerationRequest, IntArray, PolicyRef, Sampled
from lego.engine.decoder import Decoder, Row, open_decoder
from lego.engine.policy import context_of, load_model, prove, teacher_forced
from lego.engine.routing import RoutingArray
from lego.engine.sampling import sample
from lego.errors import EngineError

_Event = tuple[list[int], list[float], Finish | None, list[RoutingArray]] | EngineError


class _Job(Row):
    """A request, its row in the decoder, and the way back to who waits for it."""

    def __init__(self, request: GenerationRequest, context: int) -> None:
        super().__init__(request.session, request.prompt_ids.tolist())
        self.sampling = request.sampling
        self.left = min(request.sampling.max_tokens, context - len(self.ids))
        self.uniform = random.Random(request.sampling.seed).random
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[_Event] = asyncio.Queue()
        self.cancelled = False
        self.told = 0
        """How many parts of `routing` whoever waits has been told."""


class TransformersEngine:
    """dtype: "float32" | "bfloat16". device: "auto" | "cpu" | "cuda". threads: 0 leaves torch's default.
    prefix_bytes: memory for the prefixes of conversations between their turns. routing: tell which experts tokens went
    to, where the model has any.

    A request with a seed draws the same uniform numbers whatever is decoded beside it. At temperature 0 ids are the
    most probable ones and log-probs those of temperature 1.
    """

    sampler: Literal["policy", "script"] = "policy"

    def __init__(
        self,
        dtype: str = "float32",
        device: str = "auto",
        max_concurrent: int = 16,
        threads: int = 0,
        prefix_bytes: int = 1 << 30,
        routing: bool = False,
    ) -> None:
        self.policy_version = -1
        self._dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._max_concurrent = max_concurrent
        self._threads = threads
        self._prefix_bytes = prefix_bytes
        self._routing = routing
        self._model: PreTrainedModel | None = None
        self._decoder: Decoder | None = None
        self._context = 0
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._waiting: deque[_Job] = deque()
        self._swaps: deque[tuple[PolicyRef, Future[None]]] = deque()
        self._closed = False
        self._counts = {"requests": 0, "prompt_tokens": 0, "sampled_tokens": 0, "reused_tokens": 0}
        self._probe_gap = 0.0
        self._thread = threading.Thread(target=self._work, name="lego-engine", daemon=True)
        self._thread.start()

    # -- what coroutines call ------------------------------------------------------------------------------------

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        """Stream what is sampled after `prompt_ids`; pieces that pile up while the consumer is busy come merged."""
        self._refuse_unless_open()
        n = len(request.prompt_ids)
        if self._model is None:
            raise EngineError("no policy is loaded")
        if n == 0 or request.sampling.max_tokens < 1:
            raise EngineError(f"request {request.id}: needs a prompt and max_tokens of at least 1", fault="user")
        if n >= self._context:
            raise EngineError(
                f"request {request.id}: a prompt of {n} tokens leaves no room in a context of {self._context}",
                fault="policy",
            )
        job = _Job(request, self._context)
        self._inbox.put(lambda: self._waiting.append(job))
        try:
            while True:
                ids, logprobs, finish, routed = _unwrap(await job.events.get())
                while finish is None and not job.events.empty():
                    more, their, finish, parts = _unwrap(job.events.get_nowait())
                    ids, logprobs, routed = ids + more, logprobs + their, routed + parts
                yield Sampled(ids, logprobs, finish, np.concatenate(routed) if routed else None)
                if finish is not None:
                    return
        finally:
            job.cancelled = True

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        self._refuse_unless_open()
        if not 1 <= start < len(ids):
            raise EngineError(f"cannot score from {start} in {len(ids)} ids", fault="user")
        future: Future[FloatArray] = Future()
        self._inbox.put(lambda: _settle(future, lambda: self._score(ids, start, temperature)))
        return await asyncio.wrap_future(future)

    async def load(self, policy: PolicyRef) -> None:
        """Swap weights once running generations have ended (new ones wait). Raises EngineError and leaves no policy
        loaded when the folder cannot be read or decoding from it does not agree with a plain forward pass."""
        self._refuse_unless_open()
        future: Future[None] = Future()
        self._inbox.put(lambda: self._swaps.append((policy, future)))
        await asyncio.wrap_future(future)

    def end_session(self, session: str) -> None:
        def drop() -> None:
            if self._decoder is not None:
                self._decoder.end_session(session)

        self._inbox.put(drop)

    def stats(self) -> EngineStats:
        running = len(self._decoder.rows) if self._decoder else 0
        return EngineStats(
            **self._counts,
            running=running,
            waiting=len(self._waiting),
            extra={"probe_gap": self._probe_gap},
        )

    async def close(self) -> None:
        """Stop; generations under way end in an EngineError. May be called again."""
        if not self._closed:
            self._closed = True
            self._inbox.put(None)
        await asyncio.to_thread(self._thread.join)

    def _refuse_unless_open(self) -> None:
        if self._closed:
            raise EngineError("the engine is closed")

    # -- the worker thread ---------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _work(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        while self._read_inbox():
            if self._swaps and not self._rows():
                policy, future = self._swaps.popleft()
                _settle(future, lambda policy=policy: self._load(policy))  # type: ignore[misc]
                continue
            try:
                self._step()
            except Exception as error:
                self._fail(error)
        self._fail(EngineError("the engine was closed"))
        for _, future in self._swaps:
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineError("the engine was closed"))

    def _read_inbox(self) -> bool:
        """Run what came in; wait for something when there is nothing to do. False once the engine closes."""
        while True:
            idle = not self._rows() and not self._waiting and not self._swaps
            try:
                message = self._inbox.get(block=idle)
            except queue.Empty:
                return True
            if message is None:
                return False
            message()

    def _rows(self) -> list[_Job]:
        return self._decoder.rows if self._decoder else []

    def _step(self) -> None:
        """Let cancelled rows go, admit what waits, and sample one token for every row."""
        decoder = self._decoder
        if decoder is None:
            raise EngineError("no policy is loaded")
        for job in [job for job in decoder.rows if job.cancelled]:
            decoder.release(job)
        if decoder.rows:
            self._sample(list(decoder.rows), decoder.decode())
        admitted: list[_Job] = []
        while not self._swaps and self._waiting and len(decoder.rows) + len(admitted) < self._max_concurrent:
            job = self._waiting.popleft()
            if not job.cancelled:
                admitted.append(job)
        if admitted:
            before = decoder.reused_tokens
            self._counts["requests"] += len(admitted)
            self._counts["prompt_tokens"] += sum(len(job.ids) for job in admitted)
            self._sample(admitted, decoder.prefill(admitted))
            self._counts["reused_tokens"] += decoder.reused_tokens - before

    def _sample(self, jobs: list[_Job], logits: torch.Tensor) -> None:
        ids, logprobs = sample(logits, [job.sampling.temperature for job in jobs], [job.uniform() for job in jobs])
        post: dict[asyncio.AbstractEventLoop, list[tuple[_Job, _Event]]] = {}
        for job, token, logprob in zip(jobs, ids, logprobs, strict=True):
            event: _Event
            if math.isfinite(logprob):
                job.ids.append(token)
                job.left -= 1
                stopped = token in job.sampling.stop_ids
                finish: Finish | None = "stop" if stopped else "length" if job.left == 0 else None
                event, ended = ([token], [logprob], finish, job.routing[job.told :]), finish is not None
                job.told = len(job.routing)
                self._counts["sampled_tokens"] += 1
            else:
                event, ended = EngineError(f"policy {self.policy_version} gave a log-probability of {logprob}"), True
            if ended and self._decoder is not None:
                self._decoder.release(job)
            post.setdefault(job.loop, []).append((job, event))
        for loop, events in post.items():
            _post(loop, events)

    def _fail(self, error: Exception) -> None:
        """Everyone who waits is told, and nothing half-written is kept."""
        told = error if isinstance(error, EngineError) else EngineError(f"decoding failed: {error!r}")
        jobs = [*self._rows(), *self._waiting]
        self._waiting.clear()
        if self._decoder is not None:
            self._decoder.reset()
        for job in jobs:
            _post(job.loop, [(job, told)])

    def _load(self, policy: PolicyRef) -> None:
        # The old weights go first: two copies of a large policy may not fit.
        self._model = self._decoder = None
        model = load_model(policy, self._dtype, self._device)
        decoder = open_decoder(model, self._prefix_bytes, self._routing)
        self._probe_gap = prove(model, decoder)
        self._context = context_of(model, policy.path)
        self.policy_version = policy.version
        self._model, self._decoder = model, decoder

    def _score(self, ids: IntArray, start: int, temperature: float) -> FloatArray:
        if self._model is None:
            raise EngineError("no policy is loaded")
        return teacher_forced(self._model, ids, start, temperature)


def _unwrap(event: _Event) -> tuple[list[int], list[float], Finish | None, list[RoutingArray]]:
    if isinstance(event, EngineError):
        raise event
    return event


def _settle(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return  # whoever asked was cancelled meanwhile
    try:
        result = work()
    except Exception as error:
        future.set_exception(error if isinstance(error, EngineError) else EngineError(repr(error)))
    else:
        future.set_result(result)


def _post(loop: asyncio.AbstractEventLoop, events: list[tuple[_Job, _Event]]) -> None:
    def deliver() -> None:
        for job, event in events:
            job.events.put_nowait(event)

    try:
        loop.call_soon_threadsafe(deliver)
    except RuntimeError:  # the loop that asked is closed: nobody waits any more
        for job, _ in events:
            job.cancelled = True
