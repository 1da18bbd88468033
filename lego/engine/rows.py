"""The key-value cache of a batch whose rows have lengths of their own."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

_GRAIN = 256

LayerStates = list[tuple[torch.Tensor, torch.Tensor]]
"""Keys and values of one row, a pair a layer: [heads, tokens, width]."""


class RowCache(Cache):
    """Keys and values of all rows in one tensor a layer, [rows, heads, capacity, width], grown as needed.

    `aim` says which rows and positions the next forward pass writes; attention then sees those rows up to `seen`
    tokens. Rows stay contiguous, so that what attention reads is a view.
    """

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._first = self._rows = self._seen = 0
        self._row_index = self._position_index = torch.empty(0, dtype=torch.long)
        self._real: torch.Tensor | None = None

    def aim(self, first: int, starts: list[int], lengths: list[int], device: torch.device) -> None:
        """The next forward pass holds len(starts) rows from row `first` on; row i brings lengths[i] new tokens from
        position starts[i], padded on the right to the longest."""
        width = max(lengths)
        offsets = torch.arange(width, device=device)
        positions = torch.tensor(starts, device=device)[:, None] + offsets
        rows = torch.arange(first, first + len(starts), device=device)[:, None].expand_as(positions)
        if min(lengths) == width:
            self._real = None
            self._row_index, self._position_index = rows.reshape(-1), positions.reshape(-1)
        else:
            real = offsets < torch.tensor(lengths, device=device)[:, None]
            self._real = real.reshape(-1).nonzero().squeeze(1)
            self._row_index, self._position_index = rows[real], positions[real]
        self._first, self._rows = first, len(starts)
        self._seen = max(start + length for start, length in zip(starts, lengths, strict=True))

    @property
    def seen(self) -> int:
        return self._seen

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [rows, heads, new, width] where `aim` said; return views [rows, heads, seen, width]."""
        if layer_idx == len(self._keys):
            self._keys.append(_like(key_states, 0, 0))
            self._values.append(_like(value_states, 0, 0))
        last = self._first + self._rows
        views = []
        for store, states in ((self._keys, key_states), (self._values, value_states)):
            pool = store[layer_idx] = _grown(store[layer_idx], last, self._seen)
            flat = states.transpose(1, 2).reshape(-1, states.shape[1], states.shape[3])
            pool[self._row_index, :, self._position_index] = flat if self._real is None else flat[self._real]
            views.append(pool[self._first : last, :, : self._seen])
        return views[0], views[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._seen

    def copy_out(self, row: int, tokens: int) -> LayerStates:
        return [
            (k[row, :, :tokens].clone(), v[row, :, :tokens].clone())
            for k, v in zip(self._keys, self._values, strict=True)
        ]

    def copy_in(self, row: int, tokens: int, states: LayerStates) -> None:
        """Lay the first `tokens` tokens of `states` into `row`."""
        for layer, (key, value) in enumerate(states):
            for store, state in ((self._keys, key), (self._values, value)):
                pool = store[layer] = _grown(store[layer], row + 1, tokens)
                pool[row, :, :tokens] = state[:, :tokens]

    def move(self, source: int, target: int, tokens: int) -> None:
        for store in (self._keys, self._values):
            for pool in store:
                pool[target, :, :tokens] = pool[source, :, :tokens]

    def clear(self) -> None:
        """Give the memory back."""
        self._keys.clear()
        self._values.clear()


def _like(states: torch.Tensor, rows: int, capacity: int) -> torch.Tensor:
    # Zeros, not uninitialised memory: a masked key has weight 0, and 0 times NaN is NaN.
    return states.new_zeros((rows, states.shape[1], capacity, states.shape[3]))


def _grown(pool: torch.Tensor, rows: int, tokens: int) -> torch.Tensor:
    have_rows, _, have_tokens, _ = pool.shape
    if rows <= have_rows and tokens <= have_tokens:
        return pool
    capacity = have_tokens
    if tokens > have_tokens:
        capacity = -(-max(tokens, have_tokens + have_tokens // 4) // _GRAIN) * _GRAIN
    wider = _like(pool, have_rows if rows <= have_rows else max(rows, 2 * have_rows), capacity)
    wider[:have_rows, :, :have_tokens] = pool
    return wider
