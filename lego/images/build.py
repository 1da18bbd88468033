"""Building what a run needs: its base image, one image a task environment, one runtime image a harness."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal
from urllib.parse import quote

from lego.config.schema import ImagesSection
from lego.errors import Fault, ImageError, LegoError, SandboxError
from lego.images import inspection, recipes
from lego.images.bases import build_base
from lego.images.blame import damaged, machine_fault
from lego.images.command import CommandFailed, run_logged, tail
from lego.images.hostcfg import lend
from lego.images.plan import ImageJob, Kind
from lego.images.scratch import scratch, sweep, write_tree
from lego.images.shelf import Shelf
from lego.sandbox.podman import Podman
from lego.together import together
from lego.units import parse_size

Status = Literal["built", "cached", "failed"]

_BUILD_FOLDER = "/run/lego-build"
_INSPECTION_TIMEOUT = 300.0
_NOT_REMOVED = (1, 2, 125)
"""Exit codes of `podman rmi` for an image that is not there, that a container stands on, or that cannot be read."""
_PAUSES = (2.0, 10.0)
"""Seconds before a build that network or machine broke is tried again."""


class MachineFailed(ImageError):
    """A build that the network or the machine broke each time it was tried."""


@dataclass(frozen=True)
class ImageResult:
    """`seconds` is what this call spent; `bytes` the image's size with its layers; `reason` says why it failed, and
    `fault` whose fault that was: a task's own image that does not build is the task's."""

    key: str
    tag: str
    kind: Kind
    name: str
    status: Status
    log_path: Path
    seconds: float
    bytes: int = 0
    reason: str = ""
    fault: Fault = "infra"


Stage = Literal["look", "wait", "build", "end"]


@dataclass(frozen=True)
class ImageEvent:
    """One of `of` images is looked for, waited for (another process builds it), being built (its log grows), or came
    to its end, with its `result`."""

    job: ImageJob
    stage: Stage
    of: int
    log_path: Path
    result: ImageResult | None = None


OnEvent = Callable[[ImageEvent], None]
_Tell = Callable[[Stage, ImageResult | None], None]


class Builder:
    """Builds images into one store. Several processes may build into it at once; each image is built by one."""

    def __init__(self, podman: Podman, section: ImagesSection, log_dir: Path) -> None:
        self.podman = podman
        self.section = section
        self.log_dir = log_dir
        self.shelf = Shelf(podman)
        self._sizes: dict[str, int] = {}
        self._records = podman.paths.store / "images"
        self._records.mkdir(exist_ok=True)
        log_dir.mkdir(parents=True, exist_ok=True)
        sweep(podman)

    async def build(self, jobs: Sequence[ImageJob], on_event: OnEvent = lambda event: None) -> list[ImageResult]:
        """Build what is missing; results in the order of `jobs`. A failure is a result, and stops nothing but the
        images that stand on a base that failed.
        """
        # One listing in place of a question an image: most of the time nothing is missing.
        self._sizes = await self.podman.call(self.shelf.sizes)
        bases = [job for job in jobs if job.kind == "base"]
        others = [job for job in jobs if job.kind != "base"]
        tags = {job.tag for job in others}
        late = [job for job in others if job.recipe is not None and job.recipe.base in tags]
        self._bases = {job.tag: job for job in bases}

        async def one(job: ImageJob, base: ImageResult | None = None) -> ImageResult:
            path = self._log_path(job)

            def tell(stage: Stage, result: ImageResult | None) -> None:
                on_event(ImageEvent(job, stage, len(jobs), path, result))

            return await self._one(job, tell, base)

        results = {id(job): await one(job) for job in bases}
        broken = {result.tag: result for result in results.values() if result.status == "failed"}
        gate = asyncio.Semaphore(max(1, self.section.parallel))

        async def guarded(job: ImageJob) -> None:
            async with gate:
                results[id(job)] = await one(job, broken.get(job.recipe.base) if job.recipe is not None else None)

        for those in ([job for job in others if job not in late], late):
            async with together() as group:
                for job in those:
                    group.create_task(guarded(job))
            broken |= {job.tag: results[id(job)] for job in those if results[id(job)].status == "failed"}
        return [results[id(job)] for job in jobs]

    def _log_path(self, job: ImageJob) -> Path:
        return self.log_dir / f"{job.kind}-{job.key[:20]}.log"

    async def _one(self, job: ImageJob, tell: _Tell, base: ImageResult | None) -> ImageResult:
        started = time.monotonic()
        log_path = self._log_path(job)
        tell("look", None)
        status: Status = "failed"
        reason, size = job.problem, 0
        fault: Fault = "task" if job.kind in ("task", "verifier") else "infra"
        if base is not None:
            reason, fault = f"its base image failed: {base.reason}", base.fault
        if not reason:
            try:
                status, size = await self._ensure(job, log_path, tell)
            except LegoError as error:
                reason = error.message
                fault = error.fault if isinstance(error, SandboxError | MachineFailed) else fault
            except TimeoutError:
                reason = f"not built within {job.timeout:.0f} s"
            except OSError as error:
                reason, fault = str(error), "infra"
        if status == "failed":
            with contextlib.suppress(OSError), log_path.open("a") as log:
                log.write(f"\nlego: {reason}\n")
        result = ImageResult(
            job.key, job.tag, job.kind, job.name, status, log_path, time.monotonic() - started, size, reason, fault
        )
        tell("end", result)
        return result

    async def _ensure(self, job: ImageJob, log_path: Path, tell: _Tell) -> tuple[Status, int]:
        if job.tag in self._sizes and (size := await self._ready(job)):
            self.shelf.used(job.tag)
            return "cached", size
        async with self._lock(job.key, lambda: tell("wait", None)):
            self._sizes.pop(job.tag, None)
            if size := await self._ready(job):
                self.shelf.used(job.tag)
                return "cached", size
            self.podman.check_disk()
            self.shelf.check_quota(parse_size(self.section.quota) if self.section.quota else 0)
            with log_path.open("wb") as log:
                tell("build", None)
                await self._with_patience(job, log)
        self.shelf.used(job.tag)
        return "built", await self._size(job.tag) or 0

    async def _with_patience(self, job: ImageJob, log: IO[bytes]) -> None:
        """Build, again after a pause where network or machine broke it. What they broke to the end is infrastructure's
        fault."""
        for pause in (*_PAUSES, None):
            began = log.seek(0, os.SEEK_END)
            try:
                await self._have_base(job, log)
                async with asyncio.timeout(job.timeout):
                    await self._make(job, log)
                return
            except (ImageError, SandboxError) as error:
                log.flush()
                said = tail(Path(log.name), began)
                why = machine_fault(said, error.code if isinstance(error, CommandFailed) else None)
                if not why and not isinstance(error, SandboxError):
                    raise
                why = why or "podman failed"
                if pause is None:
                    raise MachineFailed(f"{why} ({len(_PAUSES) + 1} tries): {error.message}") from error
                if job.recipe is not None and job.recipe.base in self._bases and damaged(said):
                    await self._output("rmi", job.recipe.base, allow=_NOT_REMOVED)
                _note(log, f"{why}; again in {pause:g} s")
                await asyncio.sleep(pause)

    async def _have_base(self, job: ImageJob, log: IO[bytes]) -> None:
        """Make the base again where it is lost, or was thrown away as damaged, since this build began."""
        base = self._bases.get(job.recipe.base) if job.recipe is not None else None
        if base is None or await self._exists(base.tag):
            return
        _note(log, f"its base image {base.name} is gone from the store: it is made again")
        await self._output("rmi", base.tag, allow=_NOT_REMOVED)  # what there may be left of it
        self._sizes.pop(base.tag, None)
        result = await self._one(base, lambda stage, result: None, None)
        if result.status == "failed":
            raise MachineFailed(f"its base image is gone from the store and cannot be made again: {result.reason}")

    async def _make(self, job: ImageJob, log: IO[bytes]) -> None:
        if job.section is not None:
            await build_base(self.podman, job.section, lambda argv: self._run(argv, log))
        else:
            await self._build(job, log)

    async def _ready(self, job: ImageJob) -> int | None:
        """The image's size, None while it is not there. Raises ImageError if it holds what a task of the job hides."""
        size = await self._size(job.tag)
        if size is None or job.kind != "task":
            return size
        record = inspection.kept(self.podman.paths.store, job.key)
        if record is None:  # it came by `lego images import`: this name is given to proven images alone, but not here
            record = await self._inspect(job.tag)
            self._keep(record, job)
        self._accept(record, job)
        return size

    async def _build(self, job: ImageJob, log: IO[bytes]) -> None:
        """Build under a name of its own; only an image that passed inspection gets the name that trials use."""
        recipe = job.recipe
        assert recipe is not None
        unproven = f"{job.tag}-unproven"
        user = recipe.restore_user
        if user is None:
            await self._pull(recipe.base, log)
            shown = await self._output("image", "inspect", "--format", "{{.Config.User}}", recipe.base)
            user = shown.strip() or "0"
        text = recipe.dockerfile
        if recipe.purge:
            text += f"USER 0\nRUN sh {_BUILD_FOLDER}/purge.sh\n"
        if recipe.purge or recipe.restore_user is None:
            text += f"USER {user}\n"
        with scratch(self.podman) as folder:
            write_tree(recipe.context, folder / "context")
            (folder / "Dockerfile").write_text(text)
            (folder / "tools").mkdir()
            (folder / "tools/purge.sh").write_text(recipes.PURGE)
            (folder / "hostcfg").mkdir(mode=0o700)
            await self._run(
                self.podman.argv(
                    "build",
                    "--network",
                    "host",
                    "--file",
                    str(folder / "Dockerfile"),
                    "--tag",
                    unproven,
                    "--label",
                    f"lego.kind={job.kind}",
                    "--label",
                    f"lego.key={job.key}",
                    f"--volume={folder / 'tools'}:{_BUILD_FOLDER}:ro",
                    *lend(folder / "hostcfg"),
                    str(folder / "context"),
                ),
                log,
            )
        try:
            if job.kind == "task":
                _note(log, "looking into the image")
                record = await self._inspect(unproven)
                self._accept(record, job)
                self._keep(record, job)
            await self._run(self.podman.argv("tag", unproven, job.tag), log)
        finally:
            await self._run(self.podman.argv("untag", unproven, unproven), log)

    async def _inspect(self, image: str) -> inspection.Inspection:
        output = await self._output(
            "run", "--rm", "--network", "none", "--user", "0", "--entrypoint", "/bin/sh", image, "-c",
            inspection.SCRIPT, timeout=_INSPECTION_TIMEOUT, allow=(126, 127),
        )  # fmt: skip
        try:
            return inspection.parse(output)
        except ValueError as error:
            raise ImageError(f"{error}: the image needs sh, find and sha256sum", fault="task") from error

    def _keep(self, record: inspection.Inspection, job: ImageJob) -> None:
        target = inspection.record_path(self.podman.paths.store, job.key)
        fresh = target.with_suffix(f".{os.getpid()}")
        fresh.write_text(record.to_json())
        fresh.replace(target)

    @staticmethod
    def _accept(record: inspection.Inspection, job: ImageJob) -> None:
        problems = [*record.problems, *inspection.leaks(record, job.tasks)]
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise ImageError(f"not fit for training: {problems[0]}{more}", fault="task")

    async def _pull(self, image: str, log: IO[bytes]) -> None:
        if await self._size(image) is None:
            await self._run(self.podman.argv("pull", image), log)

    async def _size(self, tag: str) -> int | None:
        """Bytes of an image with its layers; None where it is not there, or cannot be read."""
        if tag in self._sizes:
            return self._sizes[tag]
        response = await self.podman.call(
            lambda: self.podman.request("get", f"/images/{quote(tag, safe='')}/json", allow=(404, 500))
        )
        return int(response.json()["Size"]) if response.status_code == 200 else None

    async def _exists(self, tag: str) -> bool:
        """Whether an image is in the store now and whole enough to be looked at."""
        return bool(await self._output("image", "inspect", "--format", "{{.Id}}", tag, allow=(125,)))

    async def _output(self, *args: str, timeout: float = 60.0, allow: Sequence[int] = ()) -> str:
        done = await self.podman.call(lambda: self.podman.cli(*args, timeout=timeout, allow=allow))
        return done.stdout.decode(errors="replace")

    async def _run(self, argv: Sequence[str], log: IO[bytes]) -> None:
        await run_logged(argv, self.podman.env, log)

    @contextlib.asynccontextmanager
    async def _lock(self, key: str, on_wait: Callable[[], None]) -> AsyncIterator[None]:
        """One builder of one image at a time among all processes; the lock dies with its process."""
        with (self._records / f"{key}.lock").open("w") as handle:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    on_wait()
                    await asyncio.sleep(0.2)
            yield


def _note(log: IO[bytes], text: str) -> None:
    log.write(f"lego: {text}\n".encode())
    log.flush()
