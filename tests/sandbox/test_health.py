"""The health check of a container: what must answer before its command begins."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lego.clock import TrialClock
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec
from lego.sandbox.health import Gate
from lego.sandbox.podman import Podman
from lego.tasks.task import Healthcheck
from tests.sandbox.running import SMALL, run

QUICK = Healthcheck("", interval=0.02, timeout=5.0, start_interval=0.02, retries=2)


def check(command: str, **more: float) -> Healthcheck:
    return Healthcheck(**{**QUICK.__dict__, "command": command, **more})  # type: ignore[arg-type]


@given(st.binary(max_size=40), st.binary(max_size=40), st.booleans())
def test_what_comes_before_the_word_is_the_gates(before: bytes, after: bytes, whole: bool) -> None:
    gate = Gate(QUICK, ())
    word = gate.argv(["true"])[4].encode()
    pieces = [before + b"\n" + word + b"\n" + after] if whole else [before + b"\n", word + b"\n", after]
    assert b"".join(map(gate.take, pieces)) == after
    assert gate.passed and gate.said == before + b"\n"


@given(st.integers(1, 9), st.floats(0, 99), st.floats(0.1, 99), st.floats(0, 99))
def test_the_host_waits_for_longer_than_the_check_can_take(
    retries: int, interval: float, timeout: float, period: float
) -> None:
    gate = Gate(Healthcheck("x", interval, timeout, period, 1.0, retries), ())
    assert gate.limit > period + retries * (timeout + interval) + timeout


@pytest.mark.podman
async def test_a_good_check_leaves_no_trace_in_what_follows(podman: Podman, busybox: str) -> None:
    ending = await run(
        podman, busybox, "cat; ls /dev/shm; exit 3", spec={"health": check("echo noise; test -d /app")}, stdin=b"in\n"
    )
    assert (ending.rc, ending.reason, ending.stdout) == (3, "exit", b"in\n")


@pytest.mark.podman
async def test_it_is_asked_until_it_is_good(podman: Podman, busybox: str) -> None:
    third = "echo x >> /tmp/n; test $(wc -l < /tmp/n) -ge 3"
    clock = TrialClock(3600.0)
    ending = await run(podman, busybox, "wc -l < /tmp/n", spec={"health": check(third, retries=3)}, clock=clock)
    assert ending.stdout == b"3\n" and clock.waited > 0
    # In the start period a failure does not count.
    ending = await run(podman, busybox, "wc -l < /tmp/n", spec={"health": check(third, retries=1, start_period=60)})
    assert ending.stdout == b"3\n"


@pytest.mark.podman
@pytest.mark.parametrize(
    ("health", "words"),
    [
        (check("echo refused; echo x >> /app/asked; exit 1"), b"refused"),
        (check("echo x >> /app/asked; sleep 1000", timeout=0.1), b"no answer in time"),
    ],
)
async def test_a_failing_one_keeps_the_command_from_beginning(
    podman: Podman, busybox: str, health: Healthcheck, words: bytes
) -> None:
    async with open_box(podman, BoxSpec(busybox, SMALL, health=health)) as box:
        ending = await box.run(["sh", "-c", "echo begun > /app/begun"])
        assert ending.reason == "unhealthy" and words in ending.stdout
        assert await box.read(["/app/begun", "/app/asked"]) == {"/app/begun": None, "/app/asked": b"x\nx\n"}


@pytest.mark.podman
async def test_the_host_gives_up_on_a_check_that_the_container_does_not_end(
    podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lego.sandbox.health._SLACK", -12.0)
    ending = await run(podman, busybox, "echo begun", spec={"health": check("sleep 1000", timeout=4.0)})
    assert (ending.reason, b"begun" in ending.stdout) == ("unhealthy", False)


@pytest.mark.podman
async def test_the_images_own_service_is_started(podman: Podman, busybox: str) -> None:
    image = "localhost/lego-test/service:1"
    entry = 'ENTRYPOINT ["/bin/sh", "-c", "echo \\"$0 it\'s\\" > /app/up; exec \\"$@\\"", "serving"]'
    made = podman.cli("create", busybox, "true").stdout.decode().strip()
    try:
        podman.cli("commit", "--change", entry, made, image)
        health = check("grep -q serving /app/up", retries=50)
        ending = await run(podman, image, "cat /app/up", spec={"health": health})
        assert ending.stdout == b"serving it's\n"
    finally:
        podman.cli("rm", made)
        podman.cli("rmi", image, check=False)
