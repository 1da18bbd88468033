"""What runs beside the model, in the process that vLLM starts for it."""

from __future__ import annotations

from typing import Any


class TakeOver:
    """Mixed into vLLM's worker under this name (`worker_extension_cls`)."""

    model_runner: Any
    reload_weights: Any

    def take_over(self, folder: str) -> None:
        """Replace the weights by those of `folder`, in place.

        The CPU build multiplies by packed copies. It renews them as it reads each matrix; but an output layer that
        shares the embedding's is not read, and would go on with the weights before.
        """
        self.reload_weights(weights_path=folder)
        for module in self.model_runner.get_model().modules():
            if hasattr(module, "cpu_linear") and hasattr(module, "tie_weights"):
                module.quant_method.process_weights_after_loading(module)
