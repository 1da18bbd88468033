"""The processes that train one policy together: how micro-batches are dealt out, and how what came of them is merged.

Weights and normalisers of a loss are computed over all segments before anything is dealt out, so a step does not
depend on how many processes take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch

from lego.engine.base import FloatArray
from lego.objective.losses import Mean

T = TypeVar("T")


class Alone:
    """One process: everything is its own."""

    first = True
    """Whether this process is the one that writes files."""

    def share(self, work: Sequence[T]) -> list[tuple[T, bool]]:
        """What of `work` this process does, and whether it counts."""
        return [(item, True) for item in work]

    def collect(self, rows: Sequence[FloatArray]) -> None:
        """Fill in, in place, what other processes computed; what this one did not compute is 0 in `rows`."""

    def total(self, metrics: Mapping[str, Mean]) -> dict[str, Mean]:
        """The metrics of all processes together."""
        return dict(metrics)


class Gang(Alone):
    """The processes of torch.distributed's default group.

    All of them must do the same number of forward and backward passes, because weights and gradients are exchanged
    within: where `work` does not divide evenly, a process repeats an item, which then does not count.
    """

    def __init__(self) -> None:
        self.rank = torch.distributed.get_rank()
        self.size = torch.distributed.get_world_size()
        self.first = self.rank == 0

    def share(self, work: Sequence[T]) -> list[tuple[T, bool]]:
        rounds = -(-len(work) // self.size)
        places = [turn * self.size + self.rank for turn in range(rounds)]
        return [(work[place], True) if place < len(work) else (work[0], False) for place in places]

    def collect(self, rows: Sequence[FloatArray]) -> None:
        if self.size == 1 or not rows:
            return
        device = "cuda" if torch.distributed.get_backend() == "nccl" else "cpu"
        flat = torch.from_numpy(np.concatenate(rows)).to(device)
        torch.distributed.all_reduce(flat)
        merged = flat.cpu().numpy()
        at = 0
        for row in rows:
            row[:] = merged[at : at + len(row)]
            at += len(row)

    def total(self, metrics: Mapping[str, Mean]) -> dict[str, Mean]:
        parts: list[dict[str, tuple[float, float]]] = [{} for _ in range(self.size)]
        torch.distributed.all_gather_object(parts, {name: (mean.total, mean.n) for name, mean in metrics.items()})
        summed: dict[str, Mean] = {}
        for part in parts:
            for name, (total, n) in part.items():
                summed[name] = summed.get(name, Mean()).plus(Mean(total, n))
        return summed
