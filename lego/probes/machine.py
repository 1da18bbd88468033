"""Probes of the computer: processor, memory, disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lego.config.schema import Config
from lego.probes.finding import Finding
from lego.rundb.paths import run_folder
from lego.units import parse_size

_GIB = 1 << 30


def probe(config: Config) -> Iterator[Finding]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    boxes = config.rollout.concurrency + config.verify.concurrency
    asked = boxes * parse_size(config.sandbox.memory)
    text = (
        f"{os.cpu_count()} cores, {memory / _GIB:.0f} GiB of memory; {boxes} sandboxes may take {asked / _GIB:.1f} GiB"
    )
    yield Finding("machine", asked < memory, text, "lower sandbox.memory, rollout.concurrency or verify.concurrency")
    folder = run_folder(config.run.dir, config.run.name)
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    reserve = parse_size(config.sandbox.disk_reserve)
    yield Finding(
        "disk",
        free > reserve,
        f"{free / _GIB:.1f} GiB free for {_short(folder)}",
        "free some space, or set run.dir to another disk",
    )


def _short(folder: Path) -> str:
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)
