"""Probes of the sandbox: can podman start containers here, and what does it enforce?"""

from __future__ import annotations

from collections.abc import Iterator

from lego.config.schema import Config
from lego.errors import LegoError
from lego.probes.finding import Finding
from lego.rollout.site import podman_settings
from lego.sandbox.podman import Podman


def probe(config: Config) -> Iterator[Finding]:
    try:
        with Podman.open(podman_settings(config)) as podman:
            can = podman.capabilities
    except LegoError as error:
        yield Finding("sandbox", False, str(error), error.hint)
        return
    root = "rootless" if can.rootless else "rootful"
    text = (
        f"podman {can.version}, {root}, {can.runtime}, cgroup {can.cgroup_version}; "
        f"limits {'enforced' if can.limits else 'NOT enforced'}, "
        f"user namespace {'of its own' if can.user_namespace else 'shared'}"
    )
    yield Finding("sandbox", True, text)
    for note in can.notes:
        yield Finding("sandbox", True, note)
