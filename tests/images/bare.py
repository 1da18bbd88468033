"""A minimal image for tests: a static shell and nothing else, no Python, no C library that a harness could lean on."""

from __future__ import annotations

from pathlib import Path

from benchmarks.scene import base_image
from lego.sandbox.podman import Podman

TAG = "localhost/lego-test/bare:2"
DOCKERFILE = """
FROM {base} AS packages
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static
FROM scratch
COPY --from=packages /bin/busybox /bin/busybox
RUN ["/bin/busybox", "--install", "/bin"]
RUN mkdir -p /tmp /app /run /etc && chmod 1777 /tmp /app
"""


async def make_bare_image(podman: Podman, folder: Path) -> str:
    """The image's tag; it is built if it is missing."""
    if podman.cli("image", "exists", TAG, check=False).returncode != 0:
        base = await base_image(podman, folder)
        text = DOCKERFILE.format(base=base).encode()
        podman.cli("build", "--network", "host", "--tag", TAG, "--file", "-", str(folder), input=text)
    return TAG
