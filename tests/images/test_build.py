"""Real builds. Most stand on the bare image, so that each takes a second or two."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scene import base_image
from lego.config.schema import ImagesSection
from lego.errors import ImageError
from lego.images.build import Builder, ImageResult
from lego.images.plan import plan
from lego.images.recipes import task_tag
from lego.images.scratch import scratch, sweep_builds, write_tree
from lego.sandbox.reaper import Owner
from lego.tasks.task import Environment, File, Task

pytestmark = pytest.mark.podman

HIDDEN = b"def test_the_window_is_closed(): assert window(3) == 4\n"


@pytest.fixture
def section(bare_image: str) -> ImagesSection:
    return ImagesSection(base=f"registry:{bare_image}")


@pytest.fixture
def task(podman) -> object:
    """Makes tasks whose images are new in every run; the images are removed afterwards."""
    made: list[tuple[Task, ImagesSection]] = []

    def make(lines: str, section: ImagesSection, timeout: float = 120, **files: File) -> Task:
        unique = File(uuid.uuid4().hex.encode())
        text = f"FROM {section.base.removeprefix('registry:')}\n{lines}"
        context = {"Dockerfile": File(text.encode()), "unique": unique, **files}
        environment = Environment(context=context, build_timeout=timeout)
        new = Task(
            id=f"t{len(made)}",
            digest=uuid.uuid4().hex,
            instruction="",
            environment=environment,
            tests={"test_window.py": File(HIDDEN)},
        )
        made.append((new, section))
        return new

    yield make
    for used, with_section in made:
        podman.cli("rmi", "--force", task_tag(used, with_section), check=False)


async def build(podman, section, folder, *tasks) -> list[ImageResult]:
    return (await Builder(podman, section, folder / "logs").build(plan(tasks, (), section)))[1:]


async def test_one_that_does_not_build_stops_no_other_and_names_its_log(podman, section, task, tmp_path):
    bad = task("COPY unique /app/\nRUN echo no such mirror >&2; exit 7\n", section)
    good = task("COPY unique /app/unique\nUSER 1000\n", section)
    failed, built = await build(podman, section, tmp_path, bad, good)
    assert (failed.status, built.status) == ("failed", "built")
    assert "exit status 7" in failed.reason or "exit code 7" in failed.reason
    assert "no such mirror" in failed.log_path.read_text()
    assert podman.cli("image", "exists", task_tag(bad, section), check=False).returncode != 0
    shown = podman.cli("image", "inspect", "--format", "{{.User}} {{.Size}}", built.tag).stdout.decode().split()
    assert shown == ["1000", str(built.bytes)], "the purge must give the task's own user back"
    assert [r.status for r in await build(podman, section, tmp_path, good)] == ["cached"]


async def test_hidden_files_in_an_image_are_found_also_later(podman, section, task, tmp_path):
    leaking = task("COPY . /app/\n", section, **{"sub/renamed.txt": File(HIDDEN)})
    blind = replace(leaking, id="blind", tests={})
    (result,) = await build(podman, section, tmp_path, blind)
    assert result.status == "built"
    (result,) = await build(podman, section, tmp_path, blind, leaking)
    assert result.status == "failed"
    assert "/app/sub/renamed.txt is tests/test_window.py of task" in result.reason


async def test_a_tests_folder_in_the_image_is_refused(podman, section, task, tmp_path):
    (result,) = await build(podman, section, tmp_path, task("COPY unique /tests/x\n", section))
    assert result.status == "failed" and "/tests is not empty" in result.reason
    assert podman.cli("image", "exists", result.tag, check=False).returncode != 0


async def test_a_build_past_its_time_is_killed(podman, section, task, tmp_path):
    (result,) = await build(podman, section, tmp_path, task("RUN sleep 1000\n", section, timeout=4))
    assert (result.status, result.reason) == ("failed", "not built within 4 s")


async def test_interrupting_leaves_no_build_running(podman, section, task, tmp_path, monkeypatch):
    seconds = str(uuid.uuid4().int % 10**9 + 10**6)
    slow = task(f"RUN echo now; sleep {seconds}\n", section)
    work = asyncio.create_task(build(podman, section, tmp_path, slow))
    (log,) = [job for job in plan([slow], (), section) if job.kind == "task"]
    path = tmp_path / "logs" / f"task-{log.key[:20]}.log"

    async def until(condition: Callable[[], bool]) -> None:
        while not condition():
            await asyncio.sleep(0.05)

    async with asyncio.timeout(60):
        await until(lambda: work.done() or path.exists() and "\nnow\n" in path.read_text())
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        # Killed at once, seen by the kernel a moment later.
        await until(lambda: not any(seconds in line for line in command_lines()))
    monkeypatch.setattr("lego.images.scratch._home", lambda podman: tmp_path)
    assert sweep_builds(podman, dry_run=True), "the container of the killed step is found …"
    (tmp_path / f"{Owner.current().tag}.building").mkdir()
    assert sweep_builds(podman, dry_run=True) == [], "… and left alone while anybody builds"
    monkeypatch.undo()
    again = await build(podman, section, tmp_path, task("COPY unique /x\n", section))
    assert again[0].status == "built"


def command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


async def test_two_builders_build_one_image_once(podman, section, task, tmp_path):
    one = task("COPY unique /app/unique\n", section)
    folders = (tmp_path / "a", tmp_path / "b")
    results = await asyncio.gather(*(build(podman, section, folder, one) for folder in folders))
    assert sorted(result.status for (result,) in results) == ["built", "cached"]


async def test_what_stands_on_a_base_that_cannot_be_had_is_not_at_fault(podman, task, tmp_path):
    section = ImagesSection(base="registry:localhost/No-Such")
    on_it = task("", section)
    base, result = await Builder(podman, section, tmp_path / "logs").build(plan([on_it], (), section))
    assert (base.status, base.fault) == (result.status, result.fault) == ("failed", "infra")
    assert "must be lowercase" in base.log_path.read_text()
    assert result.reason == f"its base image failed: {base.reason}"


@pytest.fixture
async def debian(podman, tmp_path) -> AsyncIterator[ImagesSection]:
    """The default base, which has git and pip."""
    await base_image(podman, tmp_path)
    yield ImagesSection()


COMMIT = "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m"


async def test_more_history_than_one_commit_is_refused_wherever_it_hides(podman, debian, task, tmp_path):
    section = replace(debian, base_map={"debian:bookworm": "base"})
    head = "WORKDIR /app\nCOPY unique /app/unique\nRUN git init -q . && git add -A && "
    lines = {
        "one": f"{head}{COMMIT} one\n",
        "two": f"{head}{COMMIT} one && {COMMIT} two\n",
        "renamed": f"{head}{COMMIT} one && {COMMIT} two && mv .git .git.orig\n",
        "dangling": f"{head}{COMMIT} one && {COMMIT} two && git reset -q --hard HEAD~1\n",
    }
    tasks = []
    for text in lines.values():
        new = task(text, section)
        context = {**new.environment.context, "Dockerfile": File(f"FROM debian:bookworm\n{text}".encode())}
        tasks.append(replace(new, environment=replace(new.environment, context=context)))
    results = dict(zip(lines, await build(podman, section, tmp_path, *tasks), strict=True))
    try:
        assert results["one"].status == "built", results["one"].reason
        assert "/app/.git holds 2 commits" in results["two"].reason
        assert "/app/.git.orig holds 2 commits" in results["renamed"].reason
        assert results["dangling"].status == "built", "what nothing points at any more is purged"
        left = podman.cli(
            "run",
            "--rm",
            "--network",
            "none",
            results["dangling"].tag,
            "sh",
            "-c",
            "git cat-file --batch-all-objects --batch-check; ls -A .git/logs .git/ORIG_HEAD 2>&1 || true",
        )
        assert left.stdout.decode().count(" commit ") == 1 and b"main" not in left.stdout
    finally:
        for result in results.values():
            podman.cli("rmi", "--force", result.tag, check=False)


async def test_the_hosts_configuration_is_seen_by_a_build_and_in_no_layer(podman, debian, task, tmp_path, monkeypatch):
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://user:hunter2@index.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    lines = "RUN grep -q index.example /etc/pip.conf && ls /run/hostcfg\n"
    new = task(lines, ImagesSection(base="registry:debian:bookworm"))
    (result,) = await build(podman, debian, tmp_path, new)
    try:
        assert result.status == "built", result.log_path.read_text()
        saved = podman.cli(
            "run",
            "--rm",
            "--network",
            "none",
            result.tag,
            "sh",
            "-c",
            "cat /etc/pip.conf; find /run/hostcfg /run/lego-build -type f",
        ).stdout
        assert saved == b""
        assert b"hunter2" not in podman.cli("history", "--no-trunc", result.tag).stdout
        assert "hunter2" not in result.log_path.read_text()
    finally:
        podman.cli("rmi", "--force", result.tag, check=False)


def test_what_a_killed_builder_left_is_swept(podman, tmp_path):
    dead, foreign = podman.paths.store / "building/00000000-1-1.abc", podman.paths.store / "building/notes"
    with scratch(podman) as mine:
        (dead / "hostcfg").mkdir(parents=True, exist_ok=True)
        foreign.mkdir(exist_ok=True)
        Builder(podman, ImagesSection(), tmp_path)
        assert (mine.exists(), dead.exists(), foreign.exists()) == (True, False, True)
        assert mine.stat().st_mode & 0o077 == 0, "a token in an index URL is for nobody else on this host"
    foreign.rmdir()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x"])
def test_a_context_stays_inside_its_folder(path, tmp_path):
    with pytest.raises(ImageError, match="not a path inside"):
        write_tree({path: File(b"")}, tmp_path / "context")
