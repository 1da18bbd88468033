"""The log-probs of chosen tokens from last hidden states, without ever holding [tokens x vocabulary] logits.

The output layer runs over a chunk of rows at a time, into one buffer; the backward pass computes each chunk again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LOGIT_BUDGET = 1 << 24
"""Logits held at once, in elements: 64 MiB in float32."""

_BLOCK = 1 << 14
"""Rows of the output layer's gradient that are added at a time in half precision."""


def head_logprobs(
    states: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, temperature: float, dtype: torch.dtype,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Log-probs (nats) of `wanted` under softmax((states @ weight.T + bias) / temperature), and that distribution's
    entropy (nats) if asked for.

    states: [m, width] float.  weight: [vocabulary, width] float.  wanted: [m] int64.  dtype: what the output layer is
    multiplied in; log-sum-exps are float32 whatever it is. Returns [m] float32 each.
    """
    result: tuple[Tensor, Tensor] = _HeadLogprobs.apply(  # type: ignore[no-untyped-call]
        states, weight, bias, wanted, temperature, dtype, entropy, LOGIT_BUDGET
    )
    return result[0], result[1] if entropy else None


class _HeadLogprobs(torch.autograd.Function):
    """With p = softmax(x / T), x the logits, y the wanted id and H the entropy:

    d log p_y / dx = (1_y - p) / T,   dH / dx = - p (log p + H) / T.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, temperature: float,
        dtype: torch.dtype, entropy: bool, budget: int,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        m, vocabulary = len(states), weight.shape[0]
        chunk = max(1, budget // vocabulary)
        head = _Head(weight, bias, dtype, temperature, min(chunk, m))
        logp = torch.empty(m, dtype=torch.float32, device=states.device)
        surprise = torch.empty(m if entropy else 0, dtype=torch.float32, device=states.device)
        log_sum = torch.empty_like(logp)
        for at in range(0, m, chunk):
            rows = slice(at, at + chunk)
            logits = head.logits(states[rows])
            picked = logits.gather(1, wanted[rows, None]).squeeze(1)
            log_sum[rows] = torch.logsumexp(logits, 1) if entropy else _log_sum_exp(logits)
            logp[rows] = picked - log_sum[rows]
            if entropy:
                logits -= log_sum[rows, None]
                surprise[rows] = -(logits.exp() * logits).sum(1)
        ctx.save_for_backward(states, weight, bias, wanted, log_sum, surprise)
        ctx.temperature, ctx.dtype, ctx.chunk = temperature, dtype, chunk
        # One chunk in all: it is kept, as exp(logits - their maximum), rather than computed again.
        ctx.kept = logits if 0 < m <= chunk and not entropy else None
        return logp, surprise

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        states, weight, bias, wanted, log_sum, surprise = ctx.saved_tensors
        pull = gradients[0] / ctx.temperature
        spread = gradients[1] / ctx.temperature if len(surprise) else None
        m, chunk = len(states), ctx.chunk
        head = _Head(weight, bias, ctx.dtype, ctx.temperature, min(chunk, m))
        to_states = torch.empty_like(states) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        to_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[2] else None
        for at in range(0, m, chunk):
            rows = slice(at, at + chunk)
            if ctx.kept is not None:
                logits, ctx.kept = ctx.kept, None
                logits.mul_((-pull / logits.sum(1))[:, None])
            else:
                logits = head.logits(states[rows]).sub_(log_sum[rows, None])
                if spread is None:
                    logits.exp_().mul_(-pull[rows, None])
                else:
                    p = logits.exp()
                    logits.add_(surprise[rows, None]).mul_(-spread[rows, None]).sub_(pull[rows, None]).mul_(p)
            logits.scatter_add_(1, wanted[rows, None], pull[rows, None])
            moved = logits.to(ctx.dtype)
            if to_states is not None:
                to_states[rows] = (moved @ head.weight).to(to_states.dtype)
            if to_weight is not None:
                _add_product(to_weight, moved, states[rows].to(ctx.dtype))
            if to_bias is not None:
                to_bias += logits.sum(0)
        return to_states, to_weight, to_bias, None, None, None, None, None


class _Head:
    """The output layer, and the one buffer its logits go to."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, temperature: float, rows: int) -> None:
        self.weight = weight.to(dtype)
        self._bias, self._temperature = bias, temperature
        self._buffer = torch.empty(rows, weight.shape[0], dtype=torch.float32, device=weight.device)

    def logits(self, states: Tensor) -> Tensor:
        """[rows, vocabulary] float32, over the temperature; gone with the next call."""
        out = self._buffer[: len(states)]
        # The caller's autocast would choose another dtype than the one that was asked for.
        with torch.autocast(out.device.type, enabled=False):
            if self.weight.dtype == torch.float32:
                torch.mm(states.float(), self.weight.t(), out=out)
            else:
                out.copy_(states.to(self.weight.dtype) @ self.weight.t())
        if self._bias is not None:
            out += self._bias
        return out if self._temperature == 1.0 else out.div_(self._temperature)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """[m] float32; leaves exp(logits - their maximum) behind."""
    top = logits.amax(1, keepdim=True)
    return top.squeeze(1) + logits.sub_(top).exp_().sum(1).log()


def _add_product(into: Tensor, moved: Tensor, states: Tensor) -> None:
    """into += moved.t() @ states, whatever their precision."""
    if moved.dtype == into.dtype:
        into.addmm_(moved.t(), states)
        return
    # Their product is a tensor of its own: as large as the output layer, were it made at once.
    for at in range(0, len(into), _BLOCK):
        rows = slice(at, at + _BLOCK)
        into[rows] += moved[:, rows].t() @ states
