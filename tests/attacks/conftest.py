from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.scene import base_image
from lego.errors import LegoError
from lego.sandbox.podman import Podman
from tests._tiny import tiny_policy
from tests.conftest import missing
from tests.sandbox.busybox import busybox_image

__all__ = ["tiny_policy"]


@pytest.fixture(scope="session")
def busybox(podman: Podman) -> str:
    return busybox_image(podman)


@pytest.fixture(scope="session")
def python_image(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The base image that tasks share: Python, pytest and git."""
    logs: Path = tmp_path_factory.mktemp("logs")
    try:
        return asyncio.run(base_image(podman, logs))
    except LegoError as error:
        missing("podman", f"the base image cannot be built: {error}")
