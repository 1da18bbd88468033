from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.harness.spec import load_spec
from lego.images.build import Builder
from lego.images.plan import plan
from lego.images.recipes import runtime_tag
from lego.sandbox.podman import Podman
from tests.images.bare import make_bare_image


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="lego-t-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
async def runtime(podman: Podman, tmp_path: Path) -> Callable[[str], object]:
    """Builds a harness's runtime image if it is missing, and gives its tag."""

    async def build(name: str) -> str:
        spec, section = load_spec(name), ImagesSection()
        for result in await Builder(podman, section, tmp_path / "logs").build(plan((), [spec], section)):
            assert result.status != "failed", (result.reason, result.log_path.read_text())
        return runtime_tag(spec, section)

    return build


@pytest.fixture
async def bare_image(podman: Podman, tmp_path: Path) -> str:
    return await make_bare_image(podman, tmp_path)
