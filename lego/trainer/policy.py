"""The policy as the trainer holds it: loaded from a Hugging Face folder, scored without keeping its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lego.errors import ConfigError, TrainerError

LOGIT_BUDGET = 1 << 26
"""Logits held at once, in elements: 256 MiB in float32."""


class Policy:
    """A causal language model whose weights stay float32; `dtype` is what its forward pass computes in.

    bfloat16 weights would swallow a learning rate of 1e-6 whole, so only the arithmetic is in bfloat16 (autocast).
    """

    def __init__(self, folder: Path, *, dtype: str = "float32", device: str = "auto") -> None:
        if dtype not in ("float32", "bfloat16"):
            raise ConfigError(f"engine.dtype: {dtype} is not known", hint="use float32 or bfloat16")
        if not (folder / "config.json").is_file():
            raise TrainerError(
                f"{folder} is not a Hugging Face folder (no config.json)",
                hint="policy.model must be a folder with config.json and weights",
                fault="user",
            )
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        self._half = dtype == "bfloat16"
        self.model = _load(folder).to(self.device)
        # Dropout would make pi_old and pi two distributions.
        self.model.eval()
        self._head = self._trusted_head()

    @property
    def vocabulary(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[0])

    def logprobs(self, ids: Tensor, mask: Tensor, temperature: float) -> Tensor:
        """Log-probs (nats, float32) of ids[:, t] given ids[:, :t] where mask is True, 0 elsewhere.

        ids: [segments, tokens] int64, right-padded.  mask: [segments, tokens] bool, False in column 0.
        They are those of softmax(logits / temperature). Keeps the gradient if torch does.
        """
        # No attention mask: attention is causal and all padding stands to the right, so nothing real can see it.
        with self._autocast():
            if self._head is None:
                states = self.model(input_ids=ids, use_cache=False).logits
            else:
                states = self.model.base_model(input_ids=ids, use_cache=False).last_hidden_state
            rows = mask[:, 1:]
            picked = self._pick(states[:, :-1][rows], ids[:, 1:][rows], self._head or _same, temperature)
        return torch.zeros(ids.shape, dtype=torch.float32, device=ids.device).masked_scatter(mask, picked)

    def _pick(self, states: Tensor, targets: Tensor, head: Callable[[Tensor], Tensor], temperature: float) -> Tensor:
        """[m] float32: the head is applied, and differentiated, a chunk of rows at a time."""

        def chunk_logprobs(rows: Tensor, wanted: Tensor) -> Tensor:
            logits = head(rows).float() / temperature
            return logits.gather(1, wanted[:, None]).squeeze(1) - torch.logsumexp(logits, dim=1)

        chunk = max(1, LOGIT_BUDGET // self.vocabulary)
        if len(states) <= chunk:
            return chunk_logprobs(states, targets)
        parts = zip(states.split(chunk), targets.split(chunk), strict=True)
        if torch.is_grad_enabled():
            return torch.cat([checkpoint(chunk_logprobs, rows, wanted, use_reentrant=False) for rows, wanted in parts])
        return torch.cat([chunk_logprobs(rows, wanted) for rows, wanted in parts])

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self._half else nullcontext()

    @torch.no_grad()
    def _trusted_head(self) -> Callable[[Tensor], Tensor] | None:
        """The output layer, if it alone turns the last hidden state into the logits.

        Some families scale or cap their logits afterwards (Cohere, Granite, Gemma 2); there the whole forward is used.
        """
        head = self.model.get_output_embeddings()
        probe = torch.arange(8, device=self.device)[None] % self.vocabulary
        whole = self.model(input_ids=probe, use_cache=False).logits
        try:
            apart = head(self.model.base_model(input_ids=probe, use_cache=False).last_hidden_state)
        except (AttributeError, TypeError):
            return None
        return head if apart.shape == whole.shape and torch.allclose(apart, whole, rtol=1e-4, atol=1e-5) else None


@contextmanager
def memory_advice() -> Iterator[None]:
    """Turn an accelerator that ran out of memory into advice."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TrainerError(
            f"the device ran out of memory: {str(error).partition('. ')[0]}",
            hint="lower train.micro_batch_tokens, or give the engine less memory",
        ) from error


def _same(logits: Tensor) -> Tensor:
    return logits


def _load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        model, notes = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise TrainerError(f"{folder} does not load: {error}", hint="is the checkpoint complete?") from error
    # transformers fills what a checkpoint lacks with random numbers and only warns.
    lacking = sorted(notes["missing_keys"])
    if lacking:
        raise TrainerError(f"{folder} lacks weights: {', '.join(lacking[:5])} ({len(lacking)} in all)")
    return model
