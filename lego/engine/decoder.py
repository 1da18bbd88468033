"""Prefill and decode: from ids to the next token's logits, several conversations at a time.

Two ways, one interface. `BatchDecoder` runs all rows in one forward pass over one padded cache; it is for models
whose every layer is full softmax attention. `SerialDecoder` runs each row alone over the model's own cache; it is
for the rest (linear attention, sliding windows), whose state cannot be padded or cut.
Everything here runs in the engine's one worker thread, under inference mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from lego.engine.attention import grouped
from lego.engine.prefix import Prefix, PrefixStore
from lego.engine.routing import RoutingArray, RoutingTap
from lego.engine.rows import LayerStates, RowCache

PREFILL_TOKENS = 2048
"""Tokens (padding included) of one prefill pass."""


class Row:
    """One conversation being decoded. `ids` is prompt and sampled ids; `filled` of them are in the cache. `routing`:
    the experts that those went to, in parts, where that is recorded."""

    def __init__(self, session: str, prompt: Sequence[int]) -> None:
        self.session = session
        self.ids = list(prompt)
        self.filled = 0
        self.cache: Any = None
        self.routing: list[RoutingArray] = []


class Decoder(Protocol):
    rows: list[Any]
    reused_tokens: int

    def prefill(self, rows: Sequence[Row]) -> torch.Tensor:
        """Add `rows`. Returns their next-token logits [len(rows), vocabulary], in the order given."""
        ...

    def decode(self) -> torch.Tensor:
        """Feed each row's last id. Returns logits [len(self.rows), vocabulary], in the order of `self.rows`."""
        ...

    def release(self, row: Row) -> None:
        """Take `row` out and keep its prefix for its session's next turn."""
        ...

    def end_session(self, session: str) -> None: ...

    def reset(self) -> None:
        """Forget every row and every prefix."""
        ...


def open_decoder(model: PreTrainedModel, prefix_bytes: int, routing: bool = False) -> Decoder:
    """The decoder that fits the model. `prefix_bytes` bounds what is kept for later turns. routing: record the experts
    that tokens go to."""
    tap = RoutingTap(model) if routing else None
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    stock = config._attn_implementation == "sdpa"
    if kinds == {"full_attention"} and not windowed and stock:
        return BatchDecoder(model, prefix_bytes, tap)
    return SerialDecoder(model, prefix_bytes, tap)


class BatchDecoder:
    def __init__(self, model: PreTrainedModel, prefix_bytes: int, tap: RoutingTap | None = None) -> None:
        self._tap = tap
        self.rows: list[Row] = []
        self.reused_tokens = 0
        self._model = model
        self._cache = RowCache()
        self._prefixes: PrefixStore[LayerStates] = PrefixStore(prefix_bytes)

    def prefill(self, rows: Sequence[Row]) -> torch.Tensor:
        for row in rows:
            row.cache, row.filled = self._prefixes.longest(np.asarray(row.ids, np.int32))
            # At least one id must be fed, to have logits.
            row.filled = min(row.filled, len(row.ids) - 1)
            if row.cache is not None and row.cache.routing is not None:
                row.routing = [row.cache.routing[: row.filled]]
            self.reused_tokens += row.filled
        # Rows of like length share a pass, so that little of it is padding.
        order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids) - rows[i].filled)
        logits: dict[int, torch.Tensor] = {}
        while order:
            widths = [len(rows[i].ids) - rows[i].filled for i in order]
            fits = [n for n in range(1, len(order) + 1) if n * widths[n - 1] <= PREFILL_TOKENS]
            group, order = order[: max(fits, default=1)], order[max(fits, default=1) :]
            for i, out in zip(group, self._prefill_group([rows[i] for i in group]), strict=True):
                logits[i] = out
        return torch.stack([logits[i] for i in range(len(rows))])

    def _prefill_group(self, rows: list[Row]) -> torch.Tensor:
        first = len(self.rows)
        for offset, row in enumerate(rows):
            if row.cache is not None:
                self._cache.copy_in(first + offset, row.filled, row.cache.state)
                row.cache = None
        self.rows.extend(rows)
        while len(rows) == 1 and len(rows[0].ids) - rows[0].filled > PREFILL_TOKENS:
            self._forward(first, rows, [PREFILL_TOKENS])
        return self._forward(first, rows, [len(row.ids) - row.filled for row in rows])

    def decode(self) -> torch.Tensor:
        return self._forward(0, self.rows, [1] * len(self.rows))

    def _forward(self, first: int, rows: list[Row], lengths: list[int]) -> torch.Tensor:
        """Feed each row's next `lengths[i]` ids; logits after the last of them, [len(rows), vocabulary]."""
        device, width = self._model.device, max(lengths)
        fed = [row.ids[row.filled : row.filled + n] for row, n in zip(rows, lengths, strict=True)]
        ids = torch.tensor([part + [0] * (width - len(part)) for part in fed], device=device)
        starts = [row.filled for row in rows]
        self._cache.aim(first, starts, lengths, device)
        ends = torch.tensor([s + n for s, n in zip(starts, lengths, strict=True)], device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)
        positions = torch.minimum(positions, ends[:, None] - 1)
        hidden = torch.arange(self._cache.seen, device=device) > positions[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._model.dtype, device=device).masked_fill_(hidden, float("-inf"))
        last = sorted({n - 1 for n in lengths})
        with grouped(self._model):
            out = self._model(
                input_ids=ids,
                attention_mask=mask[:, None],
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=torch.tensor(last, device=device),
            )
        if self._tap:
            chosen = self._tap.take()
            for i, (row, n) in enumerate(zip(rows, lengths, strict=True)):
                row.routing.append(chosen[i * width : i * width + n])
        for row, n in zip(rows, lengths, strict=True):
            row.filled += n
        picks = torch.tensor([last.index(n - 1) for n in lengths], device=device)
        logits: torch.Tensor = out.logits[torch.arange(len(rows), device=device), picks]
        return logits

    def release(self, row: Row) -> None:
        index = self.rows.index(row)
        states = self._cache.copy_out(index, row.filled)
        ids = np.asarray(row.ids[: row.filled], np.int32)
        size = sum(k.nbytes + v.nbytes for k, v in states)
        self._prefixes.put(Prefix(row.session, ids, states, size, _routing(row)))
        last = self.rows.pop()
        if last is not row:
            self._cache.move(len(self.rows), index, last.filled)
            self.rows[index] = last

    def end_session(self, session: str) -> None:
        self._prefixes.drop_session(session)

    def reset(self) -> None:
        self.rows.clear()
        self._prefixes.clear()
        self._cache.clear()


class SerialDecoder:
    def __init__(self, model: PreTrainedModel, prefix_bytes: int, tap: RoutingTap | None = None) -> None:
        self._tap = tap
        self.rows: list[Row] = []
        self.reused_tokens = 0
        self._model = model
        self._prefixes: PrefixStore[DynamicCache] = PrefixStore(prefix_bytes)

    def prefill(self, rows: Sequence[Row]) -> torch.Tensor:
        logits = []
        for row in rows:
            prefix = self._prefixes.take(np.asarray(row.ids, np.int32), row.session)
            row.cache = DynamicCache(config=self._model.config) if prefix is None else prefix.state
            row.filled = 0 if prefix is None else len(prefix.ids)
            row.routing = [] if prefix is None or prefix.routing is None else [prefix.routing]
            self.reused_tokens += row.filled
            self.rows.append(row)
            while len(row.ids) - row.filled > PREFILL_TOKENS:
                self._forward(row, PREFILL_TOKENS)
            logits.append(self._forward(row, len(row.ids) - row.filled))
        return torch.stack(logits)

    def decode(self) -> torch.Tensor:
        return torch.stack([self._forward(row, 1) for row in self.rows])

    def _forward(self, row: Row, n: int) -> torch.Tensor:
        ids = torch.tensor([row.ids[row.filled : row.filled + n]], device=self._model.device)
        out = self._model(input_ids=ids, past_key_values=row.cache, use_cache=True, logits_to_keep=1)
        row.filled += n
        if self._tap:
            row.routing.append(self._tap.take())
        logits: torch.Tensor = out.logits[0, -1]
        return logits

    def release(self, row: Row) -> None:
        self.rows.remove(row)
        ids = np.asarray(row.ids[: row.filled], np.int32)
        self._prefixes.put(Prefix(row.session, ids, row.cache, _cache_bytes(row.cache), _routing(row)))

    def end_session(self, session: str) -> None:
        self._prefixes.drop_session(session)

    def reset(self) -> None:
        self.rows.clear()
        self._prefixes.clear()


def _routing(row: Row) -> RoutingArray | None:
    return np.concatenate(row.routing) if row.routing else None


def _cache_bytes(cache: DynamicCache) -> int:
    tensors = [
        value
        for layer in cache.layers
        for held in vars(layer).values()
        for value in (held.values() if isinstance(held, dict) else held if isinstance(held, list) else [held])
    ]
    return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
