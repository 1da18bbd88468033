"""One sealed container for one command.

The container's command is the work itself, so starting it is all it takes; there is no exec. Files are laid in
before the start and read out after the end, from outside, while nothing runs inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import sys
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

from lego.clock import TrialClock
from lego.errors import SandboxError
from lego.sandbox import reaper
from lego.sandbox.cgroup import Cgroup
from lego.sandbox.create import BoxSpec, create_body
from lego.sandbox.ending import Ending, Reason
from lego.sandbox.health import Gate
from lego.sandbox.layers import Changes, ChangesJob, Entry
from lego.sandbox.logs import LogTail, OnOutput
from lego.sandbox.podman import Podman, ServiceLost, run_podman
from lego.sandbox.probe import MAP_START
from lego.sandbox.rootfs import Job, LayJob, ReadJob, perform
from lego.sandbox.watch import disk_use, exit_watch, note_group
from lego.tasks.task import File

_TICK_FIRST, _TICK_LAST = 0.01, 0.1
_DISK_EVERY = 0.25
_KILLED = 137
_NOT_BEGUN = ("created", "configured", "initialized")
_ASK_AFTER, _GIVE_UP_AFTER = 1.0, 60.0


class Box:
    """A container to be: files are gathered by `put` and `lay`, then `run` does everything at once."""

    def __init__(self, podman: Podman, spec: BoxSpec) -> None:
        self.podman = podman
        self.spec = spec
        self.name = f"lego-{uuid.uuid4().hex[:16]}"
        self.laid: dict[str, File] = {}
        self._entries: list[Entry] = []
        self._id = ""
        self._pid_file = ""
        self._layers: dict[str, Any] = {}
        self._creating: asyncio.Future[None] | None = None
        self.ended = False
        self.put(spec.workspace)

    def put(self, files: Mapping[str, File]) -> None:
        """Lay files (absolute paths) over the image at start, owned by the box's user; part of its pristine state."""
        for path, file in files.items():
            self.laid[_absolute(path)] = file
            self._entries.append(Entry(_absolute(path), "file", file.mode, file.data))

    def lay(self, entries: Sequence[Entry]) -> None:
        """Lay entries of any kind, deletions included, after what was put so far."""
        self._entries.extend(entries)

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: bytes = b"",
        clock: TrialClock | None = None,
        stop: asyncio.Event | None = None,
        on_output: OnOutput | None = None,
        output_limit: int = 1 << 20,
    ) -> Ending:
        """Start the container with `argv` as its command and wait for its end.

        `clock` begins when the container has started. The container is killed when it runs out, `stop` is set, or
        the disk limit is passed. `on_output` gets output as it comes. Output beyond `output_limit` bytes a stream
        loses its middle. A box runs once.
        Raises SandboxError where podman fails; what the command does is never an error.
        """
        if self._creating is not None:
            raise SandboxError("a box runs one command; open another box for another")
        gate = await self.podman.call(self._gate)
        command = gate.argv(argv) if gate else list(argv)
        started = asyncio.ensure_future(self.podman.call(self._start, command, env or {}, user, stdin))
        self._creating = started
        await asyncio.shield(started)
        if clock is not None:
            clock.restart()
        try:
            return await self._watch(clock, stop, on_output, output_limit, gate)
        finally:
            self.ended = True

    async def attach(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = True) -> int:
        """Start the container with `argv` as its command on this process's own input and output, and wait for its end.

        `terminal`: input and output are a terminal, and so are the command's. Returns the exit code. Raises
        SandboxError where podman fails.
        """
        self._creating = asyncio.ensure_future(
            self.podman.call(self._create, list(argv), env or {}, None, b"", terminal)
        )
        await asyncio.shield(self._creating)
        command = self.podman.argv("start", "--attach", *(["--interactive"] if terminal else []), self.name)
        process = await asyncio.create_subprocess_exec(*command, env=dict(self.podman.env))
        self.ended = True
        return await process.wait()

    async def get(self, path: str, cap: int = 1 << 20) -> bytes | None:
        """A file's first `cap` bytes after the end; None where there is no regular file."""
        return (await self.read([path], cap))[path]

    async def read(self, paths: Sequence[str], cap: int = 1 << 20) -> dict[str, bytes | None]:
        """Several files after the end; see `get`."""
        self._need_end()
        return cast("dict[str, bytes | None]", await self._perform(ReadJob(self._merged, tuple(paths), cap)))

    async def changes(self, roots: Sequence[str], skip: frozenset[str] = frozenset()) -> Changes:
        """What differs from the image under `roots` (absolute, real paths), as bytes, after the end.

        What was laid in at the start shows as changed too; submission.collect sets it against `laid`.
        """
        self._need_end()
        lowers = str(self._layers.get("LowerDir", "")).split(":")
        job = ChangesJob(self._merged, str(self._layers["UpperDir"]), lowers, self._shift, tuple(roots), skip)
        return cast(Changes, await self._perform(job))

    async def close(self) -> None:
        """Remove the container in the background; it is killed if it still runs. The reaper would find it anyway."""
        if self._creating is not None:
            with contextlib.suppress(Exception):
                await asyncio.shield(self._creating)
            self.podman.submit(reaper.remove, self.podman, self.name)

    # --- blocking parts, run in the store's threads ------------------------------------------------------------

    def _start(self, argv: list[str], env: Mapping[str, str], user: str | None, stdin: bytes) -> None:
        self._create(argv, env, user, stdin)
        for left in (2, 1, 0):
            try:
                self.podman.request("post", f"/containers/{self._id}/start", allow=(304,), tries=1)
                return
            except ServiceLost:
                # It may have started the container before it died; one that has ended meanwhile would run again.
                if self._begun():
                    return
                if not left:
                    raise

    def _create(
        self, argv: list[str], env: Mapping[str, str], user: str | None, stdin: bytes, terminal: bool = False
    ) -> None:
        podman, spec = self.podman, self.spec
        podman.check_disk()
        image = podman.image(spec.image)
        user = user if user is not None else spec.user
        if stdin:
            self._entries.append(Entry("/run/lego-stdin", "file", 0o444, stdin))
            argv = ["/bin/sh", "-c", 'exec "$@" < /run/lego-stdin', "sh", *argv]
        body = create_body(podman, spec, self.name, argv, env, user, terminal)
        response = podman.request("post", "/containers/create", data=body, allow=(409,))
        answer = response.json()
        warnings = [line for line in answer.get("Warnings") or () if "swap" not in line.lower()]
        if warnings and not podman.settings.accept_unenforced_limits:
            raise SandboxError(
                f"podman did not take every limit: {'; '.join(warnings)}",
                hint="set sandbox.accept_unenforced_limits=true to run without",
            )
        shown = podman.request("get", f"/containers/{self.name}/json").json()
        self._id = shown["Id"]
        self._pid_file = shown.get("PidFile") or str(self._userdata(podman.paths.runroot) / "pidfile")
        self._layers = dict(shown["GraphDriver"]["Data"] or {})
        if not podman.capabilities.rootless:
            podman.request("post", f"/containers/{self._id}/mount")
        try:
            folders = (spec.workdir or image.workdir,)
            _perform(podman, self._id, LayJob(self._merged, self._shift, self._entries, user or image.user, folders))
        except OSError as error:
            raise SandboxError(f"files cannot be laid into {spec.image}: {error}") from error

    def _gate(self) -> Gate | None:
        check = self.spec.health
        return Gate(check, self.podman.image(self.spec.image).entrypoint) if check else None

    def _kill(self) -> None:
        params = {"signal": "SIGKILL"}
        try:
            self.podman.request("post", f"/containers/{self._id}/kill", params=params, allow=(404, 409, 500))
        except SandboxError:
            pid = self._pid()
            if pid is None or self.podman.capabilities.rootless:
                raise
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _state(self) -> int | Literal["running", "gone"]:
        """The exit code as podman itself tells it, or that there is none."""
        response = self.podman.request("get", f"/containers/{self._id}/json", allow=(404, 500))
        if response.status_code >= 400:
            if response.status_code == 404 or "no such container" in response.text:
                return "gone"
            raise SandboxError(f"podman cannot say how container {self.name} is: {response.text[:300]}")
        state = response.json()["State"]
        return "running" if state["Running"] else int(state["ExitCode"])

    def _begun(self) -> bool:
        """Whether the command was started, as far as podman and conmon know."""
        response = self.podman.request("get", f"/containers/{self._id}/json", allow=(404,))
        waiting = response.status_code != 404 and response.json()["State"]["Status"] in _NOT_BEGUN
        return not waiting or self._exit_file().exists()

    # --- watching ----------------------------------------------------------------------------------------------

    async def _watch(
        self,
        clock: TrialClock | None,
        stop: asyncio.Event | None,
        on_output: OnOutput | None,
        output_limit: int,
        gate: Gate | None,
    ) -> Ending:
        begun = time.monotonic()
        log = LogTail(self._userdata(self.podman.paths.graph) / "ctr.log", output_limit, on_output, gate)
        pid = self._pid()
        group = Cgroup.of_container(self._id, pid)
        evidence: dict[str, Any] = {}
        killed: Reason | None = None
        ask_at = over_at = 0.0
        tick, disk_at = _TICK_FIRST, begun + _DISK_EVERY
        with exit_watch(pid) as gone, contextlib.ExitStack() as waiting:
            if gate is not None and clock is not None:
                waiting.enter_context(clock.pause())
            stopping = asyncio.ensure_future(stop.wait()) if stop is not None else None
            try:
                while not self._exit_file().exists():
                    wait = tick if clock is None or killed else max(min(tick, clock.remaining()), 0.001)
                    waits: list[asyncio.Future[Any]] = [gone]
                    if stopping is not None and killed is None:
                        waits.append(stopping)
                    await asyncio.wait(waits, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
                    tick = 0.002 if gone.done() else min(tick * 1.5, _TICK_LAST)
                    note_group(group, evidence)
                    log.poll()
                    if gate is None or gate.passed:
                        waiting.close()
                    elif killed is None and time.monotonic() > begun + gate.limit:
                        killed = "unhealthy"
                        await self.podman.call(self._kill)
                    if killed is None:
                        if stopping is not None and stopping.done():
                            killed = "stopped"
                        elif clock is not None and clock.remaining() <= 0:
                            killed = "timeout"
                        elif time.monotonic() > disk_at:
                            upper = str(self._layers["UpperDir"])
                            used = await self.podman.call(disk_use, upper, self.spec.limits.disk)
                            evidence["disk_bytes"] = used
                            disk_at = time.monotonic() + _DISK_EVERY
                            if used > self.spec.limits.disk:
                                killed = "disk"
                        if killed is not None and not self._exit_file().exists():
                            await self.podman.call(self._kill)
                    # Once the process is gone conmon has only to write the exit file; podman's word settles it
                    # where that never comes.
                    if gone.done() or killed is not None:
                        now = time.monotonic()
                        over_at = over_at or now
                        ask_at = ask_at or now + _ASK_AFTER
                        if now > ask_at:
                            if await self.podman.call(self._state) != "running":
                                break
                            ask_at = now + _ASK_AFTER
                        if killed is not None and now > over_at + _GIVE_UP_AFTER:
                            raise SandboxError(f"container {self.name} does not end though it was killed")
                note_group(group, evidence)
            finally:
                if stopping is not None:
                    stopping.cancel()
        rc = self._read_exit()
        if rc is None or (rc == _KILLED and killed is None and not evidence.get("oom_kills")):
            rc = await self._told_by_podman()
        log.poll(to_end=True)
        if log.dropped:
            evidence["output_dropped"] = log.dropped
        reason: Reason = killed or ("lost" if rc is None else "exit")
        if reason == "exit" and rc == _KILLED and evidence.get("oom_kills"):
            reason = "oom"
        stdout = log.output("stdout")
        if gate is not None and not gate.passed and reason not in ("lost", "stopped"):
            reason, stdout = "unhealthy", gate.said
        return Ending(rc, reason, stdout, log.output("stderr"), time.monotonic() - begun, evidence)

    async def _told_by_podman(self) -> int | None:
        """The exit code of a container that was killed by neither us nor the kernel, None if it is gone.

        The agent may kill its own harness; only the host can take the container away, a moment after the kill.
        """
        rc: int | None = None
        for _ in range(5):
            state = await self.podman.call(self._state)
            if state == "gone":
                return None
            rc = state if isinstance(state, int) else rc
            await asyncio.sleep(0.1)
        return rc

    def _exit_file(self) -> Path:
        return self.podman.paths.tmp / "exits" / self._id

    def _read_exit(self) -> int | None:
        try:
            text = self._exit_file().read_text().strip()
        except FileNotFoundError:
            return None
        return int(text) if text.lstrip("-").isdigit() else None

    def _userdata(self, base: Path) -> Path:
        return base / "overlay-containers" / self._id / "userdata"

    def _pid(self) -> int | None:
        try:
            return int(Path(self._pid_file).read_text())
        except (FileNotFoundError, ValueError):
            return None

    @property
    def _merged(self) -> str:
        # Where podman mounts the container; the key is only shown while it is mounted.
        return str(self._layers.get("MergedDir") or Path(self._layers["UpperDir"]).parent / "merged")

    @property
    def _shift(self) -> int:
        return MAP_START if self.podman.capabilities.user_namespace else 0

    def _need_end(self) -> None:
        if not self.ended:
            raise SandboxError("a box is read after its command has ended, never before")

    async def _perform(self, job: Job) -> object:
        def blocking() -> object:
            if not self.podman.capabilities.rootless and not os.path.ismount(self._merged):
                self.podman.request("post", f"/containers/{self._id}/mount")
            try:
                return _perform(self.podman, self._id, job)
            except OSError as error:
                raise SandboxError(f"the files of container {self.name} cannot be read: {error}") from error

        return await self.podman.call(blocking)


@contextlib.asynccontextmanager
async def open_box(podman: Podman, spec: BoxSpec) -> AsyncIterator[Box]:
    """A box for one command; its container is removed on the way out, off the critical path."""
    box = Box(podman, spec)
    try:
        yield box
    finally:
        await box.close()


def _perform(podman: Podman, container: str, job: Job) -> object:
    if not podman.capabilities.rootless:
        return perform(job)
    # Only inside the user namespace can the files be reached and the container's mount be seen.
    script = 'podman mount "$1" > /dev/null && exec "$2" -c "from lego.sandbox.rootfs import main; main()"'
    env = {**podman.env, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = run_podman(env, ["unshare", "sh", "-c", script, "sh", container, sys.executable], input=pickle.dumps(job))
    return pickle.loads(done.stdout)


def _absolute(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/"):
        raise SandboxError(f"{path!r} is not an absolute path inside a container", fault="task")
    return os.path.normpath(path)
