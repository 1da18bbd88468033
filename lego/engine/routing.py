"""Which experts each token went to, in a mixture of experts: read off the routers as the model runs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lego.errors import EngineError

_PROBE = 64
"""Tokens on which routers are proven."""

RoutingArray = npt.NDArray[np.int16]
"""[tokens, layers, experts a token]: for each token, each layer with experts in order, the experts it went to."""


UNKNOWN = -1
"""In the place of every expert of a token whose routing was not recorded: the model then chooses by itself."""


def routers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that choose experts, in layer order: those that return (logits, weights, chosen experts)."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


def weights_of(router: Any, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """[tokens, k] float32: how a router weighs the chosen experts, by the rule that `unfollowed` proves."""
    picked = torch.softmax(logits, dtype=torch.float, dim=-1).gather(1, chosen)
    if getattr(router, "norm_topk_prob", True):
        picked = picked / picked.sum(dim=-1, keepdim=True)
    return picked


def sent_to(wanted: torch.Tensor, router: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """A router's (logits, weights, chosen experts) with its tokens at the experts `wanted`, [tokens, k] integers, where
    those are not UNKNOWN; weighed afresh."""
    logits, weights, chosen = output
    chosen = torch.where(wanted == UNKNOWN, chosen, wanted.to(chosen.dtype))
    return logits, weights_of(router, logits, chosen).to(weights.dtype), chosen


@torch.no_grad()
def unfollowed(model: Any, device: torch.device) -> str:
    """The class of a router whose choices cannot be replayed; empty where all can be, or there are none.

    On random inputs, of many sizes so that no weight is near another, each router's own choice must be weighed by
    `weights_of` as the router itself weighs it. Other rules (a sigmoid, a factor, a bias) and other orders of what is
    returned are found so, whatever the family.
    """
    found = routers(model)
    told: dict[torch.nn.Module, Any] = {}

    def stir(router: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        states = inputs[0]
        noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(len(told)))
        sizes = torch.logspace(-1, 3, states.shape[-2])[:, None]
        return (noise * sizes).to(states), *inputs[1:]

    def note(router: torch.nn.Module, inputs: Any, output: Any) -> None:
        told[router] = output

    hooks = [router.register_forward_pre_hook(stir) for router in found]
    hooks += [router.register_forward_hook(note) for router in found]
    try:
        if found:
            rows = model.get_input_embeddings().num_embeddings
            ids = torch.arange(_PROBE, device=device)[None] % rows
            model.base_model(input_ids=ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return next((type(router).__name__ for router in found if not _follows(router, told.get(router))), "")


def _follows(router: torch.nn.Module, output: Any) -> bool:
    if not (isinstance(output, tuple) and len(output) == 3 and all(isinstance(part, torch.Tensor) for part in output)):
        return False
    logits, weights, chosen = output
    if chosen.is_floating_point() or chosen.shape != weights.shape or logits.shape[:-1] != chosen.shape[:-1]:
        return False
    if chosen.ndim != 2 or len(chosen) != _PROBE:
        return False
    close = 1e-4 if weights.dtype == torch.float32 else 2e-2
    return torch.allclose(weights_of(router, logits, chosen.long()), weights.float(), rtol=0, atol=close)


def _require_followed(model: Any) -> None:
    if strange := unfollowed(model, model.device):
        raise EngineError(
            f"engine.routing: the choices of {strange} cannot be replayed: it is no router of softmax",
            hint="engine.routing=false",
            fault="user",
        )


class RoutingTap:
    """Remembers the choices of the last forward pass. Without routers in the model there is nothing to remember.

    Raises EngineError where what it would remember cannot be replayed.
    """

    def __init__(self, model: Any) -> None:
        _require_followed(model)
        self._layers = routers(model)
        self._chosen: list[torch.Tensor] = []
        for router in self._layers:
            router.register_forward_hook(self._note)

    def __bool__(self) -> bool:
        return bool(self._layers)

    def _note(self, module: torch.nn.Module, inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        if module is self._layers[0]:
            self._chosen = []
        self._chosen.append(output[2])

    def take(self) -> RoutingArray:
        """[rows x width, layers, k] of the last forward pass, row after row, padding included."""
        chosen, self._chosen = self._chosen, []
        whole: RoutingArray = torch.stack(chosen, 1).cpu().numpy().astype(np.int16)
        return whole


class RoutingReplay:
    """Sends a model's tokens to experts that were recorded elsewhere; what they weigh is the model's own."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = routers(model)
        self._rows: torch.Tensor | None = None
        self._at = [0] * len(self._layers)
        self._same = self._known = 0
        for layer, router in enumerate(self._layers):
            router.register_forward_hook(partial(self._route, layer))

    def follow(self, rows: RoutingArray | None) -> None:
        """rows: of the tokens of the forward passes to come, one after another; None: the model chooses.

        Raises EngineError where choices cannot be replayed.
        """
        if rows is not None and not self._known:
            _require_followed(self._model)
        self._rows = None if rows is None else torch.from_numpy(rows.astype(np.int64))
        self._at = [0] * len(self._layers)

    @property
    def agreed(self) -> float:
        """Of the recorded experts followed so far, the share that the model would have chosen itself; nan of none."""
        return self._same / self._known if self._known else float("nan")

    def _route(self, layer: int, router: Any, inputs: Any, output: tuple[torch.Tensor, ...]) -> Any:
        if self._rows is None:
            return output
        begin = self._at[layer]
        self._at[layer] = end = begin + len(output[2])
        wanted = self._rows[begin:end, layer].to(output[2].device)
        same = (wanted[:, :, None] == output[2][:, None]).any(2)
        self._same += int(same.sum())
        self._known += int((wanted != UNKNOWN).sum())
        return sent_to(wanted, router, output)
