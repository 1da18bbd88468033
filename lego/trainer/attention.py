"""Attention over a forest of tokens (lego.trainer.forest), as an implementation that transformers can be told to use.

On the CPU it is made of flash-attention pieces: each run of tokens attends to itself causally, and what descends from
a run attends to all of it. The pieces meet through their log-sum-exps, so that nothing of the size tokens x tokens is
ever held and no pair of tokens that cannot see each other is computed. Elsewhere it is flex_attention with the same
mask in blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lego.trainer.forest import Run

NAME = "lego_forest"
"""What transformers knows this attention by."""

_HARMLESS = {"position_ids", "cache_position", "use_cache", "output_attentions", "is_causal", "past_key_values"}


class Trees:
    """The runs of one batch, as the attention wants them. calls: how often it was attended over them."""

    def __init__(self, runs: Sequence[Run], device: torch.device) -> None:
        self.runs = tuple(runs)
        self.calls = 0
        self._mask = None if device.type == "cpu" else _block_mask(self.runs, device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """[1, heads, tokens, width] of the same; key and value may have fewer heads."""
        self.calls += 1
        if torch.is_autocast_enabled(query.device.type):  # norms of queries and keys leave autocast's dtype
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if self._mask is None:
            attended: Tensor = _Pieces.apply(query, key, value, self.runs, scale)  # type: ignore[no-untyped-call]
            return attended
        flex = _compiled_flex()
        return flex(query, key, value, block_mask=self._mask, scale=scale, enable_gqa=query.shape[1] != key.shape[1])


@cache
def register() -> None:
    """Make NAME known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, _attention)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    trees: Trees | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    # Windows, sinks and caps change who attends to what: a family that asks for one is not given a forest.
    asked = sorted(name for name, given in more.items() if given is not None and name not in _HARMLESS)
    if asked or dropout or attention_mask is not None or not getattr(module, "is_causal", True):
        raise NotImplementedError(f"attention over a forest does not know {', '.join(asked) or 'such masks'}")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if trees is None:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )
    else:
        out = trees.attend(query, key, value, scale)
    return out.transpose(1, 2).contiguous(), None


class _Pieces(torch.autograd.Function):
    """Flash attention, piece by piece.

    With the log-sum-exp and the output of a query over ALL it sees, the backward pass of each piece is exact by itself
    (Dao et al. 2022, arXiv:2205.14135, section 3.1 and algorithm 4).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, runs: tuple[Run, ...], scale: float) -> Tensor:
        out = torch.empty_like(query)
        total = torch.empty(query.shape[:3], dtype=torch.float32)
        for run in runs:
            own = slice(run.start, run.end)
            _set(out, total, own, *_piece(query, key, value, own, own, True, scale))
        for run in runs:
            if run.reach > run.end:
                below, own = slice(run.end, run.reach), slice(run.start, run.end)
                _meet(out, total, below, *_piece(query, key, value, below, own, False, scale))
        ctx.save_for_backward(query, key, value, out, total)
        ctx.runs, ctx.scale = runs, scale
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        query, key, value, out, total = ctx.saved_tensors
        to_query, to_key, to_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for run in ctx.runs:
            own = slice(run.start, run.end)
            parts = _piece_backward(gradients[0], query, key, value, out, total, own, own, True, ctx.scale)
            for into, part in zip((to_query, to_key, to_value), parts, strict=True):
                into[:, :, own] = part
        for run in ctx.runs:
            if run.reach > run.end:
                below, own = slice(run.end, run.reach), slice(run.start, run.end)
                parts = _piece_backward(gradients[0], query, key, value, out, total, below, own, False, ctx.scale)
                for into, part, at in zip((to_query, to_key, to_value), parts, (below, own, own), strict=True):
                    into[:, :, at] += part
        return to_query, to_key, to_value, None, None


def _piece(
    query: Tensor, key: Tensor, value: Tensor, rows: slice, columns: slice, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the queries at `rows` over the keys at `columns`."""
    part: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query[:, :, rows], key[:, :, columns], value[:, :, columns], 0.0, causal, scale=scale
    )
    return part


def _piece_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    total: Tensor,
    rows: slice,
    columns: slice,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    parts: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient[:, :, rows], query[:, :, rows], key[:, :, columns], value[:, :, columns], out[:, :, rows],
        total[:, :, rows], 0.0, causal, scale=scale,
    )  # fmt: skip
    return parts


def _set(out: Tensor, total: Tensor, rows: slice, part: Tensor, weight: Tensor) -> None:
    out[:, :, rows], total[:, :, rows] = part, weight


def _meet(out: Tensor, total: Tensor, rows: slice, part: Tensor, weight: Tensor) -> None:
    """What the queries saw so far and what they see in one more piece, each by its share."""
    before = total[:, :, rows]
    both = torch.logaddexp(before, weight)
    share = torch.exp(weight - both)[..., None].to(out.dtype)
    out[:, :, rows] += (part - out[:, :, rows]) * share
    total[:, :, rows] = both


def _block_mask(runs: tuple[Run, ...], device: torch.device) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    sizes = torch.tensor([run.end - run.start for run in runs], device=device)
    reach = torch.repeat_interleave(torch.tensor([run.reach for run in runs], device=device), sizes)

    def sees(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return (column <= row) & (row < reach[column])

    return create_block_mask(sees, None, None, len(reach), len(reach), device=device)


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Tensor] = torch.compile(flex_attention)
    return compiled
