from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import requests

from lego.clock import TrialClock
from lego.errors import SandboxError, Unfit
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, ImageMount, Mount
from lego.sandbox.files import perform_in
from lego.sandbox.layers import Entry
from lego.sandbox.podman import Podman
from lego.sandbox.reaper import remove
from lego.sandbox.rootfs import Job
from lego.sandbox.seal import INSIDE, seal
from lego.sandbox.submission import Submission
from lego.tasks.task import File
from tests.sandbox.running import SMALL, run

pytestmark = pytest.mark.podman


async def test_a_command_runs_with_its_files_environment_and_streams(podman: Podman, busybox: str) -> None:
    spec = {"workspace": {"/app/sub/new.txt": File(b"laid\n", 0o600)}, "env": {"A": "1"}}
    line = "cat sub/new.txt; echo $A$B; pwd; echo oops >&2; ls -l sub/new.txt; exit 7"
    ending = await run(podman, busybox, line, spec=spec, env={"B": "2"})
    assert (ending.rc, ending.reason, ending.stderr) == (7, "exit", b"oops\n")
    lines = ending.stdout.decode().splitlines()
    assert lines[:3] == ["laid", "12", "/app"]
    assert lines[3].startswith("-rw-------")


async def test_the_box_is_confined(podman: Podman, busybox: str) -> None:
    ending = await run(podman, busybox, "cat /proc/self/status; echo; ls /sys/class/net; mount -t tmpfs x /tmp")
    fields = dict(line.split(":", 1) for line in ending.stdout.decode().splitlines() if ":" in line)
    assert {fields[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {"0" * 16}
    assert fields["NoNewPrivs"].strip() == "1"
    assert ending.stdout.decode().split()[-1] == "lo"
    assert ending.rc != 0


async def test_root_inside_is_nobody_outside(podman: Podman, busybox: str) -> None:
    if not (podman.capabilities.user_namespace or podman.capabilities.rootless):
        pytest.skip("no user namespaces here")
    ending = await run(podman, busybox, "cat /proc/self/uid_map")
    inside, outside, _ = map(int, ending.stdout.split()[:3])
    assert inside == 0 and outside != 0


async def test_no_proxy_setting_of_the_host_leaks_in(podman: Podman, busybox: str) -> None:
    ending = await run(podman, busybox, "env")
    names = {line.partition("=")[0].lower() for line in ending.stdout.decode().splitlines()}
    assert not names & {"http_proxy", "https_proxy", "no_proxy"}


async def test_stdin_and_named_users(podman: Podman, busybox: str) -> None:
    spec = {"workspace": {"/app/mine": File(b"x")}, "user": "agent"}
    ending = await run(
        podman, busybox, "cat; id -u; id -g; echo $HOME; echo y > mine && cat mine", spec=spec, stdin=b"line\x00\xff\n"
    )
    assert ending.stdout == b"line\x00\xff\n1000\n1000\n/home/agent\ny\n"


async def test_an_unknown_user_is_named_and_the_tasks_doing_where_nobody_else_had_a_part_in_it(
    podman: Podman, busybox: str
) -> None:
    spec = BoxSpec(busybox, SMALL, user="nobody-here", workspace={"/app/x": File(b"")})
    for handed_in, fault in ((), "task"), ([Entry("/app/x", "file")], "infra"):
        async with open_box(podman, spec) as box:
            Submission(("/app",), tuple(handed_in)).apply_to(box)
            with pytest.raises(Unfit, match="nobody-here") as raised:
                await box.run(["true"])
        assert raised.value.fault == fault


async def test_a_missing_command_is_the_commands_own_failure(podman: Podman, busybox: str) -> None:
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        ending = await box.run(["no-such-program"])
    assert ending.reason == "exit" and ending.rc not in (0, None)


async def test_the_clock_ends_it(podman: Podman, busybox: str) -> None:
    time = [0.0]
    clock = TrialClock(60.0, now=lambda: time[0])
    ending = await run(
        podman,
        busybox,
        "echo before; sleep 1000",
        clock=clock,
        on_output=lambda stream, data: time.__setitem__(0, 61.0),
    )
    assert (ending.reason, ending.rc, ending.stdout) == ("timeout", 137, b"before\n")


async def test_a_clock_that_stands_still_does_not(podman: Podman, busybox: str) -> None:
    time = [0.0]
    clock = TrialClock(60.0, now=lambda: time[0])
    with clock.pause():
        ending = await run(
            podman,
            busybox,
            "echo before; sleep 0.3; echo done",
            clock=clock,
            on_output=lambda stream, data: time.__setitem__(0, 1000.0),
        )
    assert (ending.reason, ending.stdout) == ("exit", b"before\ndone\n")


async def test_the_caller_stops_it_and_hears_it_live(podman: Podman, busybox: str) -> None:
    stop = asyncio.Event()
    heard: list[tuple[str, bytes]] = []

    def on_output(stream: str, data: bytes) -> None:
        heard.append((stream, data))
        stop.set()

    ending = await run(podman, busybox, "echo ready; sleep 1000", stop=stop, on_output=on_output)
    assert (ending.reason, heard) == ("stopped", [("stdout", b"ready\n")])


async def test_long_output_loses_its_middle_only(podman: Podman, busybox: str) -> None:
    ending = await run(podman, busybox, "echo first; yes | head -c 400000; echo last", output_limit=1000)
    assert ending.stdout.startswith(b"first\n") and ending.stdout.endswith(b"last\n")
    assert len(ending.stdout) == 1000
    assert ending.evidence["output_dropped"] == 400000 + 11 - 1000


async def test_reading_is_for_after_the_end_and_running_is_once(podman: Podman, busybox: str) -> None:
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        with pytest.raises(SandboxError, match="after its command has ended"):
            await box.get("/app/kept.txt")
        await box.run(["sh", "-c", "ln -s /etc/passwd link; ln -s ../../../../../../etc/shadow up"])
        assert await box.get("/app/kept.txt") == b"kept\n"
        assert await box.get("/app") is None
        assert (await box.get("/app/link") or b"").startswith(b"root:x:0:0:root:/root:/bin/sh\nagent")
        assert await box.get("/app/up") is None
        with pytest.raises(SandboxError, match="one command"):
            await box.run(["true"])


async def test_a_box_for_several_commands_keeps_its_files_and_nothing_else(podman: Podman, busybox: str) -> None:
    async with open_box(podman, BoxSpec(busybox, SMALL, env={"A": "1"}, several=True)) as box:
        line = "cat; echo $A$B > kept; sleep 1000 & exit 7"
        first = await box.run(["sh", "-c", line], env={"B": "a 'b'"}, stdin=b"in")
        assert (first.rc, first.stdout) == (7, b"in")
        assert await box.get("/app/kept") == b"1a 'b'\n"
        box.put({"/app/laid": File(b"later\n")})
        second = await box.run(["sh", "-c", "cat kept laid; echo $B.; cat; ls -d /proc/[0-9]* | wc -l; exit 2"])
        assert (second.rc, second.stdout) == (2, b"1a 'b'\nlater\n.\n4\n")
        third = await box.run(["sh", "-c", "sleep 1000"], clock=TrialClock(0.0))
        assert third.reason == "timeout"
        assert {entry.path for entry in (await box.changes(["/app"])).entries} == {"/app", "/app/kept", "/app/laid"}
    await podman.drain()
    assert not list(podman.paths.sockets.glob(f"*{box.name}*"))


async def test_a_box_at_rest_has_its_files_and_never_ran(podman: Podman, busybox: str) -> None:
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        box.put({"/app/new/x": File(b"x", 0o4755)})
        await box.rest()
        found = await box.tree(["/app/pkg", "/app/new", "/app/none"], [("*.py",), (), ()])
        assert [(entry.path, entry.kind, entry.mode, entry.data) for entry in found.entries] == [
            ("/app/pkg", "dir", 0o755, b""),
            ("/app/new", "dir", 0o755, b""),
            ("/app/new/x", "file", 0o755, b"x"),
        ]
        assert found.folders == ["/app/pkg", "/app/new"]


async def test_a_missing_image_says_what_to_do(podman: Podman) -> None:
    with pytest.raises(SandboxError, match="localhost/lego-test/none") as caught:
        await run(podman, "localhost/lego-test/none:1", "true")
    assert "build-images" in caught.value.hint


async def test_mounts_are_read_only(podman: Podman, busybox: str) -> None:
    with seal(podman.paths) as sealed:
        (sealed.folder / "note").write_text("from outside")
        spec = {"mounts": (Mount(str(sealed.folder), INSIDE),), "image_mounts": (ImageMount(busybox, "/opt/other"),)}
        line = f"cat {INSIDE}/note; cat /opt/other/app/kept.txt; echo x > {INSIDE}/y; echo x > /opt/other/app/kept.txt"
        ending = await run(podman, busybox, line, spec=spec)
        assert ending.stdout == b"from outsidekept\n"
        assert ending.stderr.count(b"Read-only file system") == 2
        assert [path.name for path in sealed.folder.iterdir()] == ["note"]
    assert not sealed.folder.exists()


async def test_nothing_but_the_seal_can_be_reached(podman: Podman, busybox: str) -> None:
    with seal(podman.paths) as sealed:
        server = await asyncio.start_unix_server(lambda reader, writer: None, sealed.socket)
        async with server:
            line = f"[ -S {INSIDE}/proxy.sock ] && echo there; wget -q -O - http://127.0.0.1:1/; wget http://1.1.1.1/"
            ending = await run(podman, busybox, line, spec={"mounts": (Mount(str(sealed.folder), INSIDE),)})
    assert ending.stdout == b"there\n"
    assert b"Connection refused" in ending.stderr and b"Network is unreachable" in ending.stderr


async def test_a_killed_service_costs_nothing(podman: Podman, busybox: str) -> None:
    def on_output(stream: str, data: bytes) -> None:
        if b"one" in data:
            assert podman._service is not None
            podman._service.send_signal(signal.SIGKILL)

    ending = await run(podman, busybox, "echo one; sleep 0.3; echo two; exit 3", on_output=on_output)
    assert (ending.rc, ending.reason, ending.stdout) == (3, "exit", b"one\ntwo\n")


async def test_a_container_taken_away_is_lost_not_failed(podman: Podman, busybox: str) -> None:
    started = asyncio.Event()
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        running = asyncio.ensure_future(
            box.run(["sh", "-c", "echo up; sleep 1000"], on_output=lambda stream, data: started.set())
        )
        await started.wait()
        assert await podman.call(remove, podman, box.name)
        ending = await running
    assert ending.reason == "lost"


@pytest.mark.parametrize("removed", [False, True])
async def test_without_its_monitor_a_container_has_no_exit_code(
    podman: Podman, busybox: str, removed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman says 0 of it while it is being stopped, which nobody has seen."""
    monkeypatch.setattr("lego.sandbox.container._GIVE_UP_AFTER", 2.0)
    started = asyncio.Event()
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        running = asyncio.ensure_future(
            box.run(["sh", "-c", "echo up; sleep 1000"], on_output=lambda stream, data: started.set())
        )
        await started.wait()
        shown = podman.request("get", f"/containers/{box.name}/json").json()
        os.kill(int(Path(shown["ConmonPidFile"]).read_text()), signal.SIGKILL)
        if removed:
            assert await podman.call(remove, podman, box.name)
        else:
            os.kill(shown["State"]["Pid"], signal.SIGKILL)
        ending = await running
    assert (ending.rc, ending.reason) == (None, "lost")


@pytest.mark.parametrize("first", [False, True])
async def test_a_container_taken_away_while_files_are_laid_is_the_machines(
    podman: Podman, busybox: str, first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the first of them is laid, and after."""

    def perform(podman: Podman, container: str, job: Job) -> object:
        remove(podman, container)
        if first:
            return perform_in(podman, container, job)
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "sub")

    monkeypatch.setattr("lego.sandbox.container.perform_in", perform)
    with pytest.raises(SandboxError, match="cannot be laid") as raised:
        await run(podman, busybox, "true", spec={"workspace": {"/app/sub/x": File(b"")}})
    assert not isinstance(raised.value, Unfit) and raised.value.fault == "infra"


async def test_what_is_missing_in_a_container_taken_away_is_not_missing_in_it(
    podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def perform(podman: Podman, container: str, job: Job) -> object:
        remove(podman, container)
        return {"/app/x": None}

    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        await box.run(["true"])
        monkeypatch.setattr("lego.sandbox.container.perform_in", perform)
        with pytest.raises(SandboxError, match="vanished while its files were read"):
            await box.get("/app/x")


async def test_many_at_once_and_none_left(podman: Podman, busybox: str) -> None:
    endings = await asyncio.gather(*(run(podman, busybox, f"exit {n}", spec={"run_id": "many"}) for n in range(12)))
    assert [ending.rc for ending in endings] == list(range(12))


async def test_a_cancelled_run_leaves_no_container(podman: Podman, busybox: str) -> None:
    begun = asyncio.Event()
    names: list[str] = []

    async def forever() -> None:
        async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
            names.append(box.name)
            await box.run(["sh", "-c", "echo up; sleep 1000"], on_output=lambda stream, data: begun.set())

    task = asyncio.ensure_future(forever())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await podman.drain()
    listed = json.loads(podman.cli("ps", "--all", "--format", "json").stdout or b"[]")
    assert not any(names[0] in container["Names"] for container in listed)


async def test_a_nearly_full_disk_starts_nothing(podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    monkeypatch.setattr(podman, "settings", replace(podman.settings, disk_reserve=1 << 60))
    with pytest.raises(SandboxError, match="GiB free") as caught:
        await run(podman, busybox, "true")
    assert "lego gc" in caught.value.hint


async def test_paths_that_leave_the_container_are_refused(podman: Podman, busybox: str) -> None:
    for path in ("relative", "/app/../../etc/x"):
        with pytest.raises(SandboxError, match="absolute path"):
            await run(podman, busybox, "true", spec={"workspace": {path: File(b"")}})


@pytest.mark.parametrize("answered", [False, True])
async def test_a_command_runs_once_where_the_service_dies_as_it_starts(
    podman: Podman, busybox: str, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """Asked again, podman starts a container anew whose command has ended meanwhile."""
    send, left = requests.Session.send, ["once"]

    def broken(session: requests.Session, request: requests.PreparedRequest, **how: Any) -> requests.Response:
        if not str(request.url).endswith("/start") or not left:
            return send(session, request, **how)
        left.pop()
        if answered:
            send(session, request, **how)
            podman.cli("wait", str(request.url).split("/")[-2])
        raise requests.ConnectionError("the service is gone")

    monkeypatch.setattr(requests.Session, "send", broken)
    async with open_box(podman, BoxSpec(busybox, SMALL)) as box:
        ending = await box.run(["sh", "-c", "echo ran >> /app/ran; cat /app/ran"])
        assert await box.get("/app/ran") == b"ran\n"
    assert (ending.rc, ending.reason, ending.stdout, left) == (0, "exit", b"ran\n", [])
