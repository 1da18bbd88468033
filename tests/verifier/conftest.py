from __future__ import annotations

import pytest

from lego.sandbox.podman import Podman
from tests.sandbox.busybox import busybox_image


@pytest.fixture(scope="session")
def busybox(podman: Podman) -> str:
    return busybox_image(podman)
