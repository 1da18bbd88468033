"""What runs beside the model, in each process that vLLM starts for it or for a part of it."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from functools import partial
from typing import Any

import numpy as np
import torch

UNFETCHED = 256
"""Replies whose routes are kept although they have ended and nobody has asked: those that were aborted."""


class _Generator(torch.Generator):
    """On a CPU, with the last draw taken back by whatever is set as its offset."""

    _kept: torch.Tensor | None = None

    def keep(self) -> None:
        """What is drawn from now on may be taken back."""
        self._kept = self.get_state()

    def get_offset(self) -> int:
        return 0

    def set_offset(self, offset: int) -> torch.Generator:
        if self._kept is None:
            return self.manual_seed(self.initial_seed())
        self.set_state(self._kept)
        return self


class TakeOver:
    """Mixed into vLLM's worker under this name (`worker_extension_cls`)."""

    model_runner: Any
    reload_weights: Any
    rank: int

    def take_over(self, folder: str) -> None:
        """Replace the weights by those of `folder`, in place.

        The CPU build multiplies by packed copies. It renews them as it reads each matrix; but an output layer that
        shares the embedding's is not read, and would go on with the weights before.
        """
        self.reload_weights(weights_path=folder)
        for module in self.model_runner.get_model().modules():
            if hasattr(module, "cpu_linear") and hasattr(module, "tie_weights"):
                module.quant_method.process_weights_after_loading(module)

    def record_routing(self) -> None:
        """From now on note the experts that each token is sent to, for `take_routing`.

        Only a forward pass that runs as it is written asks its routers: vLLM must run without graphs. Where the policy
        is divided every worker has the routers whole and chooses alike, so the first one's choices are noted.
        """
        if self.rank:
            return
        from vllm.model_executor.layers.fused_moe.layer import MoERunner

        runner = self.model_runner
        mixtures = [module for module in runner.get_model().modules() if isinstance(module, MoERunner)]
        mixtures.sort(key=lambda module: module.layer_id)
        if not mixtures or any(module.is_monolithic for module in mixtures):
            raise RuntimeError("vLLM does not tell which experts this policy's tokens go to")
        chosen: dict[int, Any] = {}
        for place, module in enumerate(mixtures):
            module.router.set_capture_fn(partial(chosen.__setitem__, place))
        self._routes: dict[str, list[tuple[int, Any]]] = {}
        run = runner.execute_model

        def execute(scheduled: Any, *more: Any, **named: Any) -> Any:
            done = run(scheduled, *more, **named)
            if scheduled.total_num_scheduled_tokens:
                # [tokens, layers, k]; the requests' tokens stand one after another.
                rows = np.stack([chosen[place].cpu().numpy() for place in range(len(mixtures))], 1).astype(np.int16)
                self._note(scheduled, runner.input_batch.req_ids, rows)
            for request in [one for one in self._routes if one not in runner.requests][:-UNFETCHED]:
                del self._routes[request]
            return done

        runner.execute_model = execute

    def _note(self, scheduled: Any, requests: list[str], rows: Any) -> None:
        begins = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        running = scheduled.scheduled_cached_reqs
        begins |= dict(zip(running.req_ids, running.num_computed_tokens, strict=True))
        at = 0
        for request in requests:
            n = scheduled.num_scheduled_tokens.get(request, 0)
            if n:
                self._routes.setdefault(request, []).append((begins[request], rows[at : at + n]))
            at += n

    def take_routing(self, name: str, tokens: int) -> tuple[tuple[int, ...], bytes] | None:
        """Shape and bytes of [tokens, layers, k] int16: the experts of the request's first tokens, -1 where they were
        not run over because their keys and values were in the cache. Forgets them. None of any worker but the first."""
        if self.rank:
            return None
        (request,) = [one for one in self._routes if one.partition("-")[0] == name]
        parts = self._routes.pop(request)
        whole = np.full((tokens, *parts[0][1].shape[1:]), -1, np.int16)
        for begin, rows in parts:
            end = min(begin + len(rows), tokens)
            whole[begin:end] = rows[: end - begin]
        return whole.shape, whole.tobytes()

    def take_draws_back(self) -> None:
        """For the CPU build: after a part of a prompt vLLM samples a token that it throws away, and takes the draw back
        by an offset, which generators on a CPU do not have; a request with a seed would end vLLM."""
        torch.Generator = _Generator  # type: ignore[misc]
        runner = self.model_runner
        run = runner.execute_model

        def execute(*scheduled: Any, **named: Any) -> Any:
            for request in runner.requests.values():
                if isinstance(request.generator, _Generator):
                    request.generator.keep()
            return run(*scheduled, **named)

        runner.execute_model = execute

    def end_with(self, lego: int) -> None:
        """When the process `lego` is killed, go as well: vLLM by itself would stay, and hold its memory. With several
        workers its scheduler has a process of its own, which ends when they do."""

        def wait() -> None:
            with contextlib.suppress(ProcessLookupError):
                select.select([os.pidfd_open(lego)], [], [])
            os._exit(1)

        threading.Thread(target=wait, name="lego", daemon=True).start()
