"""Agents that attack the machine: each is contained by its own limits, and the next container runs as ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lego.clock import TrialClock
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec
from lego.sandbox.podman import Podman
from tests.sandbox.running import SMALL, run

pytestmark = pytest.mark.podman


async def _still_fine(podman: Podman, image: str) -> bool:
    ending = await run(podman, image, "echo fine")
    return (ending.rc, ending.stdout) == (0, b"fine\n")


async def test_a_fork_bomb(podman: Podman, busybox: str, limits: None) -> None:
    ending = await run(
        podman, busybox, "bomb() { bomb | bomb & }; bomb; while true; do sleep 9 & done", clock=TrialClock(20)
    )
    assert ending.reason in ("exit", "timeout") and ending.evidence["pids_refused"] > 0
    assert await _still_fine(podman, busybox)


async def test_eating_memory(podman: Podman, busybox: str, limits: None) -> None:
    ending = await run(podman, busybox, "x=aaaaaaaa; while true; do x=$x$x; done", clock=TrialClock(60))
    assert ending.reason == "oom" and ending.evidence["oom_kills"] >= 1
    assert await _still_fine(podman, busybox)


async def test_memory_eaten_through_shared_memory(podman: Podman, busybox: str) -> None:
    ending = await run(
        podman, busybox, "dd if=/dev/zero of=/dev/shm/x bs=1M count=200; ls -l /dev/shm/x", clock=TrialClock(60)
    )
    written = int(ending.stdout.split()[4]) if ending.stdout else 0
    assert written <= 64 << 20 and await _still_fine(podman, busybox)


async def test_filling_the_disk(podman: Podman, busybox: str) -> None:
    line = "i=0; while true; do i=$((i+1)); dd if=/dev/zero of=/app/$i bs=1M count=16; done"
    ending = await run(podman, busybox, line, clock=TrialClock(60))
    assert ending.reason == "disk" and ending.evidence["disk_bytes"] > SMALL.disk
    assert await _still_fine(podman, busybox)


async def test_filling_the_disk_with_names(podman: Podman, busybox: str) -> None:
    spec = {"limits": replace(SMALL, disk=2 << 20)}
    line = "i=0; while true; do i=$((i+1)); mkdir /app/d$i; done"
    ending = await run(podman, busybox, line, spec=spec, clock=TrialClock(60))
    assert ending.reason == "disk"


async def test_one_file_over_its_limit(podman: Podman, busybox: str) -> None:
    spec = {"limits": replace(SMALL, file_size=1 << 20)}
    ending = await run(podman, busybox, "dd if=/dev/zero of=/app/big bs=1M count=40; wc -c < /app/big", spec=spec)
    assert int(ending.stdout) == 1 << 20


async def test_a_flood_of_output(podman: Podman, busybox: str) -> None:
    ending = await run(podman, busybox, "yes", clock=TrialClock(3), output_limit=10_000)
    assert ending.reason == "timeout" and len(ending.stdout) <= 10_000
    assert await _still_fine(podman, busybox)


async def test_killing_everything(podman: Podman, busybox: str) -> None:
    ending = await run(podman, busybox, "kill -9 1; kill -9 -1; kill -9 $$; echo alive")
    assert ending.reason == "exit" and ending.rc == 137 and b"alive" not in ending.stdout
    assert await _still_fine(podman, busybox)


async def test_holding_on_after_the_end(podman: Podman, busybox: str) -> None:
    """A process left behind is dead before anything is read."""
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        line = "(while true; do echo 1 > /app/late; rm /app/late; done) > /dev/null 2>&1 & exit 0"
        ending = await box.run(["sh", "-c", line])
        before = await box.changes(["/app"])
        after = await box.changes(["/app"])
    assert ending.rc == 0 and before == after


@pytest.mark.parametrize(
    "line",
    [
        "mount -t proc proc /tmp",
        "echo 1 > /proc/sys/kernel/panic",
        "echo c > /proc/sysrq-trigger",
        "mkdir /sys/fs/cgroup/x",
        "chown 1000 /app/kept.txt",
        "cd /proc/1/root && cat ../../../etc/shadow",
    ],
)
async def test_reaching_for_the_host(podman: Podman, busybox: str, line: str) -> None:
    ending = await run(podman, busybox, line)
    assert ending.rc != 0
