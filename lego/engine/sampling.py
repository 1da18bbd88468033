"""One token a row, and its log-probability under the distribution it was drawn from."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def log_probs(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """log softmax(logits / T) in float32, nats. logits [rows, vocabulary], temperatures [rows].

    T = 0 is greedy: no distribution is left to take a logarithm of, so its rows get those of T = 1.
    """
    scale = torch.where(temperatures > 0, temperatures, torch.ones_like(temperatures))
    return torch.log_softmax(logits.float() / scale[:, None], dim=-1)


def sample(
    logits: torch.Tensor, temperatures: Sequence[float], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Draw one id a row by inverting its cumulative distribution at that row's own uniform number in [0, 1).

    A row's draw thus depends on its logits and its own number alone, whatever else is in the batch. The sum runs in
    float64, so that the tail of a large vocabulary keeps its mass. Returns ids and log-probs (nats), one a row.
    """
    heat = torch.tensor(list(temperatures), dtype=torch.float32, device=logits.device)
    logp = log_probs(logits, heat)
    cumulative = logp.double().exp().cumsum(dim=-1)
    mark = torch.tensor(list(uniforms), dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    drawn = torch.searchsorted(cumulative, mark, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)
    ids = torch.where(heat > 0, drawn, logits.argmax(dim=-1))
    return ids.tolist(), logp.gather(1, ids[:, None]).squeeze(1).tolist()
