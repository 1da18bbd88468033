"""Faults under builds of images: each ends as infrastructure with its true reason or heals when it is tried again, and
no other image is touched. A Dockerfile that is broken is its task's own fault, and not tried again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any

import pytest

from lego.config.schema import ImagesSection
from lego.errors import SandboxError
from lego.images import build as build_module
from lego.images.build import Builder, ImageEvent, ImageResult
from lego.images.plan import ImageJob, plan
from lego.processes import with_argument
from lego.sandbox.podman import Podman, PodmanSettings
from lego.tasks.task import Environment, File, Task
from tests.sandbox.busybox import rootfs

pytestmark = pytest.mark.podman

STORE_SIZE = "160m"


class Mirror(ThreadingHTTPServer):
    """A package index on the loopback. `/once/…` is overloaded at its first request; `/held/…` answers nothing until
    `free` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Pages)
        self.seen: set[str] = set()
        self.asked, self.free = threading.Event(), threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"


class Pages(BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        first = self.path not in self.server.seen
        self.server.seen.add(self.path)
        if self.path.startswith("/held/"):
            self.server.asked.set()
            self.server.free.wait(60)
        self.send_response(503 if first and self.path.startswith("/once/") else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Says nothing."""


@dataclass
class Site:
    """A store of its own on a small file system, whose base image is a few files."""

    podman: Podman
    section: ImagesSection
    mirror: Mirror
    folder: Path
    base: str = field(init=False)

    def __post_init__(self) -> None:
        self.base = plan((), (), self.section)[0].tag

    def task(self, name: str, lines: str) -> Task:
        text = f"FROM debian:bookworm\nRUN echo {uuid.uuid4().hex} > /app/unique\n{lines}\n"
        return Task(name, uuid.uuid4().hex, "", Environment(context={"Dockerfile": File(text.encode())}), tests={})

    def jobs(self, tasks: dict[str, str]) -> list[ImageJob]:
        return plan([self.task(name, lines) for name, lines in tasks.items()], (), self.section)

    async def build(
        self, tasks: dict[str, str], on_event: Callable[[ImageEvent], None] = lambda event: None
    ) -> dict[str, tuple[ImageResult, str]]:
        """Name of a task (or of the base) -> what became of its image, and its log."""
        builder = Builder(self.podman, self.section, self.folder / uuid.uuid4().hex)
        results = await builder.build(self.jobs(tasks), on_event)
        return {
            result.name: (result, result.log_path.read_text() if result.log_path.exists() else "") for result in results
        }

    def with_base_of_its_own(self) -> Site:
        """The same store, and a base image that no other shares a layer with."""
        tar = self.folder / f"{uuid.uuid4().hex}.tar"
        with tarfile.open(tar, "w") as archive, tarfile.open(self.section.base.removeprefix("rootfs:")) as plain:
            for entry in plain:
                archive.addfile(entry, plain.extractfile(entry) if entry.isreg() else None)
            archive.addfile(tarfile.TarInfo(f"app/{tar.stem}"))
        return Site(self.podman, replace(self.section, base=f"rootfs:{tar}"), self.mirror, self.folder)

    def shown(self, what: str) -> str:
        """What the store says of the base image."""
        return self.podman.cli("image", "inspect", "--format", what, self.base).stdout.decode().strip()


@pytest.fixture(scope="module")
def site(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("builds")
    tar, store, mirror = folder / "rootfs.tar", folder / "store", Mirror()
    tar.write_bytes(rootfs())
    store.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STORE_SIZE}", "tmpfs", store]).returncode
    ):
        pytest.skip("a store on a small file system takes root that may mount one")
    threading.Thread(target=mirror.serve_forever, daemon=True).start()
    patch = pytest.MonkeyPatch()
    patch.setattr(build_module, "_PAUSES", (0.0, 0.0))
    opened = Podman.open(PodmanSettings(store, disk_reserve=0))
    try:
        yield Site(opened, ImagesSection(base=f"rootfs:{tar}", base_map={"debian:bookworm": "base"}), mirror, folder)
    finally:
        patch.undo()
        mirror.shutdown()
        opened.close()
        shutil.rmtree(opened.paths.run, ignore_errors=True)
        for mounted in (opened.paths.graph / "overlay", store):
            subprocess.run(["umount", "--lazy", mounted], capture_output=True)


def on_build_of(name: str, strike: Callable[[], None]) -> Callable[[ImageEvent], None]:
    """Strikes once, when the image is about to be built."""
    left = [strike]

    def on_event(event: ImageEvent) -> None:
        if event.stage == "build" and event.job.name == name and left:
            left.pop()()

    return on_event


async def test_network_podman_and_recipes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {
        "sound": "RUN true",
        "hiccup": f"RUN wget -q {site.mirror.url}/once/x",
        "down": "RUN wget -q http://127.0.0.1:9/x",
        "killed": f"RUN wget -q {site.mirror.url}/held/killed",
        "locks": "RUN true",
        "broken": "RUN exit 7",
        "looks-like-it": "RUN echo 'image not known: may be corrupted' && exit 1",
    }
    cli, refused = site.podman.cli, ["locks"]

    def locks_run_out(*args: str, **how: Any) -> Any:
        if args[0] == "run" and of["locks"].tag in " ".join(args) and refused:
            refused.pop()
            raise SandboxError("podman run failed: allocating lock for new container: exceeded num_locks (2048)")
        return cli(*args, **how)

    monkeypatch.setattr(site.podman, "cli", locks_run_out)
    builder, jobs = Builder(site.podman, site.section, site.folder / "many"), site.jobs(tasks)
    of = {job.name: job for job in jobs}

    async def kill() -> None:
        await asyncio.to_thread(site.mirror.asked.wait, 60)
        for pid in with_argument(f"lego.key={of['killed'].key}"):
            os.kill(pid, signal.SIGKILL)
        site.mirror.free.set()

    results, _ = await asyncio.gather(builder.build(jobs), kill())
    ended = {result.name: result for result in results}
    logs = {name: result.log_path.read_text() for name, result in ended.items()}
    assert {name: (result.status, result.fault) for name, result in ended.items() if result.status == "failed"} == {
        "down": ("failed", "infra"), "broken": ("failed", "task"), "looks-like-it": ("failed", "task"),
    }, {name: result.reason for name, result in ended.items()}  # fmt: skip
    for name, said in (
        ("hiccup", "the network failed"), ("killed", "podman was killed (signal 9)"), ("locks", "podman failed"),
    ):  # fmt: skip
        assert ended[name].status == "built" and logs[name].count(f"lego: {said}; again") == 1, logs[name]
    assert ended["down"].reason.startswith("the network failed (3 tries): ")
    for name in ("broken", "looks-like-it", "sound"):
        assert logs[name].count("$ podman build") == 1 and "again" not in logs[name]
    assert "exit status 7" in ended["broken"].reason


async def test_a_dead_proxy_is_not_the_tasks_and_the_next_command_builds(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = {"needs-it": f"RUN wget -q {site.mirror.url}/x", "sound": "RUN true"}
    monkeypatch.setitem(site.podman.env, "http_proxy", "http://127.0.0.1:9")  # type: ignore[arg-type]
    ended = await site.build(needs)
    failed, _ = ended["needs-it"]
    assert (failed.status, failed.fault) == ("failed", "infra") and failed.reason.startswith("the network failed")
    assert ended["sound"][0].status == "built"
    monkeypatch.undo()
    assert (await site.build(needs))["needs-it"][0].status == "built"


@pytest.mark.parametrize("how", ["removed", "layer", "manifest", "configuration"])
async def test_a_base_that_is_lost_or_damaged_is_made_again(site: Site, how: str) -> None:
    own = site.with_base_of_its_own()
    await own.build({})
    layer, image = own.shown("{{.GraphDriver.Data.UpperDir}} {{.Id}}").split()

    def strike() -> None:
        kept = site.podman.paths.graph / "overlay-images" / image
        if how == "removed":
            site.podman.cli("rmi", own.base)
        elif how == "layer":
            shutil.rmtree(layer)
        elif how == "manifest":
            (kept / "manifest").write_text("{")
        else:
            for path in kept.glob("=*"):
                path.unlink()

    ended = await own.build({"struck": "RUN true"}, on_build_of("struck", strike))
    result, log = ended["struck"]
    assert result.status == "built", (result.reason, log)
    assert "is gone from the store: it is made again" in log
    assert ("the image store is damaged; again" in log) == (how == "layer")


async def test_a_damaged_layer_that_others_stand_on_is_infrastructures_and_other_images_go_on(site: Site) -> None:
    own = site.with_base_of_its_own()
    await own.build({"above": "RUN true"})
    shutil.rmtree(own.shown("{{.GraphDriver.Data.UpperDir}}"))
    (struck, _), (sound, _) = (await own.build({"struck": "RUN true"}))["struck"], (await site.build({"s": ""}))["s"]
    assert (struck.status, struck.fault, sound.status) == ("failed", "infra", "built")
    assert struck.reason.startswith("the image store is damaged (3 tries): ") and "no such file" in struck.reason


async def test_an_image_without_a_shell_is_its_tasks_fault(site: Site) -> None:
    site.podman.cli("import", "-", "localhost/lego-test/empty:1", input=bytes(10240))
    bare = Environment(context={"Dockerfile": File(b"FROM localhost/lego-test/empty:1\nLABEL a=b\n")})
    jobs = plan([Task("bare", "bare", "", bare, tests={})], (), site.section)
    _, result = await Builder(site.podman, site.section, site.folder / "bare").build(jobs)
    assert (result.status, result.fault) == ("failed", "task") and "needs sh" in result.reason


async def test_a_disk_that_is_full_for_a_while(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = site.podman.paths.store / "fill"

    def strike() -> None:
        with fill.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(site.podman.paths.store).free - (4 << 20))

    note = build_module._note

    def noted(log: IO[bytes], text: str) -> None:
        note(log, text)
        fill.unlink(missing_ok=True)

    monkeypatch.setattr(build_module, "_note", noted)
    ended = await site.build({"big": "RUN head -c 16000000 /dev/zero > /big"}, on_build_of("big", strike))
    result, log = ended["big"]
    assert result.status == "built" and log.count("lego: the disk is full; again") == 1, log


async def test_below_the_reserve_nothing_is_built(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.podman, "settings", replace(site.podman.settings, disk_reserve=1 << 50))
    (result, _) = (await site.build({"one": "RUN true"}))["one"]
    assert (result.status, result.fault) == ("failed", "infra") and "free under" in result.reason


BUILDER = """
import asyncio, sys
from pathlib import Path
from lego.config.schema import ImagesSection
from lego.images.build import Builder
from lego.images.plan import plan
from lego.sandbox.podman import Podman, PodmanSettings
from lego.tasks.task import Environment, File, Task
store, tar, text = sys.argv[1:]
section = ImagesSection(base=f"rootfs:{tar}", base_map={"debian:bookworm": "base"})
task = Task("t", "t", "", Environment(context={"Dockerfile": File(text.encode())}), tests={})
podman = Podman.open(PodmanSettings(Path(store), disk_reserve=0))
asyncio.run(Builder(podman, section, Path(store).parent / "killed").build(plan([task], (), section)))
"""


async def test_a_builder_that_is_killed_leaves_nothing_and_its_image_is_built_by_the_next(site: Site) -> None:
    mirror = site.mirror
    mirror.asked.clear(), mirror.free.clear()
    text = f"FROM debian:bookworm\nRUN wget -q {mirror.url}/held/{uuid.uuid4().hex}\n"
    store, tar = site.podman.paths.store, site.section.base.removeprefix("rootfs:")
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", BUILDER, str(store), tar, text)
    try:
        while not mirror.asked.is_set():
            assert process.returncode is None, "it ended before it was killed"
            await asyncio.sleep(0.02)
    finally:
        process.kill()
        await process.wait()
    (left,) = [folder for folder in (store / "building").iterdir() if f"-{process.pid}-" in folder.name]
    assert with_argument(f"{left}/"), "podman goes on without the one who asked"
    task = Task("t", "t", "", Environment(context={"Dockerfile": File(text.encode())}), tests={})
    builder, jobs = Builder(site.podman, site.section, site.folder / "next"), plan([task], (), site.section)
    while with_argument(f"{left}/"):  # killed already; gone when the kernel has seen to it
        await asyncio.sleep(0.01)
    assert not left.exists()
    mirror.free.set()
    assert [result.status for result in await builder.build(jobs)] == ["cached", "built"]
