"""What runs beside the model, in the process that vLLM starts for it."""

from __future__ import annotations

import multiprocessing
import os
import threading
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

    def end_with_parent(self) -> None:
        """When lego is killed, go as well: vLLM by itself would stay, and hold its memory."""
        parent = multiprocessing.parent_process()

        def wait() -> None:
            if parent is not None:
                parent.join()
                os._exit(1)

        threading.Thread(target=wait, name="lego-parent", daemon=True).start()
