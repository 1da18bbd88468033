"""The base image of a run: made from Debian packages, pulled from a registry, or imported from a root file system."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

from lego.config.schema import ImagesSection
from lego.errors import ImageError
from lego.images import keys
from lego.images.scratch import scratch
from lego.sandbox.podman import Podman

Command = Callable[[Sequence[str]], Awaitable[None]]
"""Runs one command with its output in the build's log; raises ImageError when it fails."""

_APT = Path("/etc/apt")


async def build_base(podman: Podman, section: ImagesSection, run: Command) -> None:
    """Make the base image and name it keys.base_tag(section)."""
    kind, name = keys.split_base(section.base)
    tag = keys.base_tag(section)
    if kind == "registry":
        await run(podman.argv("pull", name))
    elif kind == "rootfs":
        await run(podman.argv("import", str(Path(name).expanduser()), tag))
    else:
        with scratch(podman) as folder:
            tar = folder / "rootfs.tar"
            await run(_debian_command(name, section.packages, tar))
            change = ["--change", "ENV LANG=C.UTF-8", "--change", 'CMD ["/bin/sh"]']
            await run(podman.argv("import", *change, str(tar), tag))


def _debian_command(suite: str, packages: Iterable[str], tar: Path) -> list[str]:
    if shutil.which("mmdebstrap") is None:
        raise ImageError(
            "mmdebstrap is needed to make a Debian base image",
            hint="apt install mmdebstrap, or set images.base to registry:NAME or rootfs:TAR",
        )
    # Only documentation is left out: it is a fifth of a minimal system, and no task reads it.
    excluded = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*")
    return [
        "mmdebstrap", "--variant=minbase", f"--mode={'root' if os.geteuid() == 0 else 'unshare'}", "--format=tar",
        f"--include={','.join(packages)}", *(f"--dpkgopt=path-exclude={path}" for path in excluded),
        '--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Check-Valid-Until "false"',
        suite, str(tar), host_mirror(_APT),
    ]  # fmt: skip


def host_mirror(apt: Path) -> str:
    """The Debian archive this host uses, from the sources under `apt`. Raises ImageError where they name none."""
    folder = apt / "sources.list.d"
    for path in [apt / "sources.list", *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]:
        try:
            lines = path.read_text().splitlines()
        except OSError:
            continue
        for line in lines:
            found = re.match(r"\s*(?:URIs:|deb\s+(?:\[[^]]*\]\s+)?)\s*(\S+)", line)
            if found and found[1].rstrip("/").endswith("/debian"):
                return found[1].rstrip("/")
    raise ImageError(
        f"no Debian archive is named in {apt}, so no base can be built from packages",
        hint="set images.base to registry:NAME or rootfs:TAR, or name an archive in the apt sources",
    )
