from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lego.engine.base import PolicyRef
from lego.engine.digest import folder_digest
from lego.engine.transformers import TransformersEngine
from tests._tiny import tiny_policy

__all__ = ["tiny_policy"]


@pytest.fixture
async def engine(tiny_policy: Path) -> AsyncIterator[TransformersEngine]:
    """A transformers engine with the tiny policy loaded as version 0."""
    engine = TransformersEngine(max_concurrent=4, threads=1)
    await engine.load(PolicyRef(0, str(tiny_policy), folder_digest(tiny_policy)))
    yield engine
    await engine.close()
