"""Which experts each token went to, in a mixture of experts: read off the routers as the model runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

RoutingArray = npt.NDArray[np.int16]
"""[tokens, layers, experts a token]: for each token, each layer with experts in order, the experts it went to."""


def routers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules that choose experts, in layer order: those that return (logits, weights, chosen experts)."""
    return [module for module in model.modules() if type(module).__name__.endswith("TopKRouter")]


class RoutingTap:
    """Remembers the choices of the last forward pass. Without routers in the model there is nothing to remember."""

    def __init__(self, model: torch.nn.Module) -> None:
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
