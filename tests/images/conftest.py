from __future__ import annotations

from pathlib import Path

import pytest

from lego.sandbox.podman import Podman
from tests.images.bare import make_bare_image


@pytest.fixture
async def bare_image(podman: Podman, tmp_path: Path) -> str:
    return await make_bare_image(podman, tmp_path)
