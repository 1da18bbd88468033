"""Running one shell line in a fresh box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits
from lego.sandbox.ending import Ending
from lego.sandbox.podman import Podman
from lego.sandbox.submission import Submission, collect
from lego.tasks.task import File

SMALL = Limits(memory=64 << 20, pids=48, cpus=1.0, file_size=32 << 20, disk=64 << 20)


async def run(podman: Podman, image: str, line: str, *, spec: Mapping[str, Any] | None = None, **how: Any) -> Ending:
    async with open_box(podman, BoxSpec(image, **{"limits": SMALL, **(spec or {})})) as box:
        return await box.run(["sh", "-c", line], **how)


async def submit(
    podman: Podman, image: str, line: str, *, workspace: Mapping[str, File] | None = None, **how: Any
) -> Submission:
    async with open_box(podman, BoxSpec(image, SMALL, workspace=workspace or {})) as box:
        ending = await box.run(["sh", "-c", line])
        assert ending.reason == "exit", ending
        return await collect(box, ["/app"], **how)
