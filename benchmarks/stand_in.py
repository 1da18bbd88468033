"""What an engine must be, for those benchmarks that measure everything but an engine."""

from __future__ import annotations

from typing import Literal

import numpy as np

from lego.engine.base import EngineStats, FloatArray, IntArray, PolicyRef


class StandIn:
    """An engine without a policy; a benchmark's own says what `generate` plays."""

    sampler: Literal["policy", "script"] = "policy"
    policy_version = 0

    async def score(self, ids: IntArray, start: int, temperature: float = 1.0) -> FloatArray:
        return np.full(len(ids) - start, -0.1, np.float32)

    async def load(self, policy: PolicyRef) -> None:
        pass

    def end_session(self, session: str) -> None:
        pass

    def stats(self) -> EngineStats:
        return EngineStats()

    async def close(self) -> None:
        pass
