"""Mixtures of experts in the trainer: tokens are sent to the experts that the engine chose (R3, arXiv:2510.11370).

The engine chose in its own arithmetic, row by row; a forward pass over whole segments would now and then choose
otherwise, and one other expert moves a log-prob by more than all rounding. The weights of the chosen experts are
computed afresh, and learn. The row that produced a sampled token stands one position before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lego.engine.routing import UNKNOWN, RoutingArray, routers, sent_to, unfollowed
from lego.trajectory.tree import Call, CallTree


def path_routing(
    tree: CallTree, leaf: Call, recorded: Mapping[int, tuple[int, RoutingArray]], tokens: int
) -> RoutingArray | None:
    """[tokens, layers, k] int16 along the path of `leaf`; None where no call of it has any.

    recorded: seq -> (begin, rows), rows[i] of the call's id number begin + i.
    """
    path = [call for call, _ in tree.path(leaf)]
    shapes = [recorded[call.id][1].shape[1:] for call in path if call.id in recorded]
    if not shapes:
        return None
    whole: RoutingArray = np.full((tokens, *shapes[0]), UNKNOWN, dtype=np.int16)
    for call in path:
        # What the path left behind here was another continuation's.
        whole[max(0, call.shared - 1) :] = UNKNOWN
        if call.id in recorded:
            begin, rows = recorded[call.id]
            end = min(tokens, begin + len(rows))
            whole[begin:end] = rows[: max(0, end - begin)]
    return whole


class Routers:
    """The routers of a model: what they are to choose, and how evenly they spread the tokens."""

    def __init__(self, model: torch.nn.Module, device: torch.device) -> None:
        self._layers = routers(model)
        self._wanted: Tensor | None = None
        self._real: Tensor | None = None
        self._told: list[tuple[Tensor, Tensor]] | None = None
        self.strange = unfollowed(model, device)
        """The class of a router that can neither be told what to choose nor be balanced; empty where there is none."""
        for layer, router in enumerate(self._layers):
            router.register_forward_hook(_numbered(self._route, layer))

    def __bool__(self) -> bool:
        return bool(self._layers)

    def follow(self, wanted: Tensor | None, balance: bool, real: Tensor | None = None) -> None:
        """For the next forward pass, and its backward pass, which may compute layers again.

        wanted: [tokens, layers, k] integers, UNKNOWN where the model chooses; None: it always does.
        balance: collect what `balance` needs. real: [tokens] bool, False on padding; None: there is none.
        """
        self._wanted = wanted
        self._real = real
        self._told = [] if balance else None

    def balance(self) -> Tensor:
        """The load-balancing loss of the forward pass just made: 1 where every expert is chosen as often as any other.
        Of the routers' own choices, whatever they were told.

        experts x sum over experts of (share of all choices x mean probability), mean over layers; of real tokens alone.
        Source: Fedus et al. 2021, arXiv:2101.03961, eq. 4-6.
        """
        told, self._told = self._told or [], None
        parts = []
        for logits, chosen in told:
            if self._real is not None:
                logits, chosen = logits[self._real], chosen[self._real]
            spread = torch.softmax(logits.float(), dim=-1)
            experts = spread.shape[-1]
            share = torch.bincount(chosen.flatten(), minlength=experts).float() / chosen.numel()
            parts.append(experts * (share * spread.mean(0)).sum())
        return torch.stack(parts).mean()

    def _route(self, layer: int, router: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self._told is not None:
            self._told.append((output[0], output[2]))
        return output if self._wanted is None else sent_to(self._wanted[:, layer], router, output)


def _numbered(route: Any, layer: int) -> Any:
    return lambda router, inputs, output: route(layer, router, output)
