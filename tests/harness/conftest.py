from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lego.config.schema import ImagesSection
from lego.harness.spec import load_spec
from lego.images.build import Builder, ensure_base, plan
from lego.images.recipes import runtime_tag
from lego.sandbox.podman import Podman


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder with a path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="lego-t-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    return folder


@pytest.fixture
async def runtime(podman: Podman, tmp_path: Path) -> Callable[[str], object]:
    """Builds a harness's runtime image if it is missing, and gives its tag."""

    async def build(name: str) -> str:
        spec, section = load_spec(name), ImagesSection()
        for result in await Builder(podman, section, tmp_path / "logs").build(plan((), [spec], section)):
            assert result.status != "failed", (result.reason, result.log_path.read_text())
        return runtime_tag(spec, section)

    return build


BARE = """
FROM {base} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static
FROM scratch
COPY --from=packages /bin/busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
RUN mkdir -p /tmp /app /run /etc && chmod 1777 /tmp
"""


@pytest.fixture
async def bare_image(podman: Podman, tmp_path: Path) -> str:
    """An image with a static shell and nothing else: no Python, no C library that a harness could lean on."""
    tag = "localhost/lego-test/bare:1"
    if podman.cli("image", "exists", tag, check=False).returncode != 0:
        base = await ensure_base(podman, ImagesSection(), tmp_path / "logs")
        text = BARE.format(base=base).encode()
        podman.cli("build", "--network", "host", "--tag", tag, "--file", "-", str(tmp_path), input=text)
    return tag
