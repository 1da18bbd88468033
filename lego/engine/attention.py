"""Attention over cache rows without copying the keys once a query head.

Grouped-query models share one key head among several query heads. With an explicit mask the stock attention
repeats keys and values for every query head on every step; here the query heads of a group are laid along the
query axis instead, which gives the same numbers and reads the cache once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "lego_grouped"


def grouped_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """query [rows, heads, new, d]; key, value [rows, key heads, cached, d]; attention_mask additive
    [rows, 1, new, cached]. Returns [rows, new, heads, d].
    """
    rows, heads, new, width = query.shape
    shared = key.shape[1]
    group = heads // shared
    if attention_mask is None or group == 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    folded = query.reshape(rows, shared, group * new, width)
    mask = attention_mask if new == 1 else attention_mask.repeat(1, 1, group, 1)
    out = torch.nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, heads, new, value.shape[-1]).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register(NAME, grouped_attention)


@contextmanager
def grouped(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the model attends through `grouped_attention`; outside, through its own implementation."""
    config = model.config.get_text_config()
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before
