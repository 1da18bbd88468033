"""One sealed container for one command, or for several in a row.

The container's command is the work itself, so starting it is all it takes; there is no exec. Files are laid in
before the start and read out after the end, from outside, while nothing runs inside. A box for several commands is the
same container started once for each: what it wrote stays, what ran is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lego.clock import TrialClock
from lego.errors import Fault, SandboxError, Unfit
from lego.sandbox import reaper, relay
from lego.sandbox.cgroup import Cgroup
from lego.sandbox.control import start, start_again, state
from lego.sandbox.create import BoxSpec, Mount, absolute, create_body
from lego.sandbox.ending import Ending, Reason
from lego.sandbox.files import mount, mounted, perform_in
from lego.sandbox.health import Gate, gates
from lego.sandbox.layers import Changes, ChangesJob, Entry
from lego.sandbox.logs import LogTail, OnOutput
from lego.sandbox.podman import Podman
from lego.sandbox.probe import MAP_START
from lego.sandbox.rootfs import UNFIT, Carried, Job, LayJob, ReadJob, TreeJob
from lego.sandbox.seal import lent_folder
from lego.sandbox.watch import State, disk_use, exit_watch, note_group, read_exit, read_pid, settled, told_by_podman
from lego.tasks.task import File, Stage

_TICK_FIRST, _TICK_LAST = 0.01, 0.1
_DISK_EVERY = 0.25
_KILLED = 137
_ASK_AFTER, _GIVE_UP_AFTER = 1.0, 60.0


class Box:
    """A container to be: files are gathered by `put` and `lay`, then `run` does everything at once. `relay`: the folder
    through which a box for several commands is told the next one."""

    def __init__(self, podman: Podman, spec: BoxSpec, relay: Path | None = None) -> None:
        self.podman = podman
        self.spec = spec
        self._relay = relay
        self.name = f"lego-{uuid.uuid4().hex[:16]}"
        self.laid: dict[str, File] = {}
        self._entries: list[Entry] = []
        self._emptied: list[str] = []
        self._handed_in = False
        self._script = ""
        self._id = ""
        self._pid_file = ""
        self._layers: dict[str, Any] = {}
        self._creating: asyncio.Future[None] | None = None
        self._heard = 0
        self.ended = False
        self.put(spec.workspace)

    def put(self, files: Mapping[str, File]) -> None:
        """Lay files (absolute paths) over the image at start, owned by the box's user; part of its pristine state."""
        for path, file in files.items():
            self.laid[absolute(path)] = file
            self._entries.append(Entry(absolute(path), "file", file.mode, file.data))

    def lay(self, entries: Sequence[Entry], *, handed_in: bool = False) -> None:
        """Lay entries of any kind, deletions included, after what was put so far. `handed_in`: an agent made them."""
        self._entries.extend(entries)
        self._handed_in = self._handed_in or (handed_in and bool(entries))

    def empty(self, paths: Sequence[str]) -> None:
        """Folders (absolute paths) whose content goes before anything is laid."""
        self._emptied.extend(map(absolute, paths))

    def allow(self, script: str) -> None:
        """A file (absolute path) of the image that may be executed, whatever its own mode says."""
        self._script = absolute(script)

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
        stage: Stage | None = None,
    ) -> Ending:
        """Start the container with `argv` as its command and wait for its end.

        `clock` begins when the container has started. The container is killed when it runs out, `stop` is set, or
        the disk limit is passed. `on_output` gets output as it comes. Output beyond `output_limit` bytes a stream
        loses its middle. `stage`: what has to go well before `argv` begins. A box runs once, unless it is made for
        several commands.
        Raises SandboxError where podman fails, Unfit where it cannot begin in what was laid, or left by a command: of
        fault task where no agent had a part in it yet.
        """
        if self._creating is not None and not (self._relay and self.ended):
            raise SandboxError("a box runs one command; open another box for another")
        gated = await self.podman.call(self._gates, stage)
        command = list(argv)
        for gate in reversed(gated):
            command = gate.argv(command)
        begin = self._start if self._relay is None else self._start_next
        self._creating = asyncio.ensure_future(self.podman.call(begin, command, env or {}, user, stdin))
        await asyncio.shield(self._creating)
        self.ended = False
        if clock is not None:
            clock.restart()
        try:
            return await self._watch(clock, stop, on_output, output_limit, gated)
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

    async def rest(self) -> None:
        """Make the container without ever starting it, for the files it would have."""
        self._creating = asyncio.ensure_future(self.podman.call(self._create, ["/bin/true"], {}, None, b""))
        await asyncio.shield(self._creating)
        self.ended = True

    async def tree(self, sources: Sequence[str], exclude: Sequence[Sequence[str]]) -> Carried:
        """All that lies at absolute paths after the end, less what matches their patterns (one sequence a source)."""
        self._need_end()
        return cast(Carried, await self._perform(TreeJob(self._merged, tuple(sources), exclude)))

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
        start(self.podman, self._id, self._exit_file())

    def _start_next(self, argv: list[str], env: Mapping[str, str], user: str | None, stdin: bytes) -> None:
        """Start the container with what the relay says; the first time it is made."""
        assert self._relay is not None
        relay.say(self._relay, argv, env, stdin)
        if not self._id:
            self._start(relay.COMMAND, {}, user, b"")
            return
        if (told := settled(self._state, _GIVE_UP_AFTER)) in ("running", "gone"):
            raise SandboxError(f"container {self.name} cannot be started again: it is {told}")
        mount(self.podman, self._id, self._merged)
        self._lay_all(self.spec.user if user is None else user)
        start_again(self.podman, self._id, self._exit_file(), self._fresh_one_starts)

    def _create(
        self, argv: list[str], env: Mapping[str, str], user: str | None, stdin: bytes, terminal: bool = False
    ) -> None:
        podman, spec = self.podman, self.spec
        podman.check_disk()
        podman.image(spec.image)  # says so where there is none
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
        mount(podman, self._id, self._merged)
        self._lay_all(user, None if self._handed_in else "task")

    def _fresh_one_starts(self) -> bool:
        other = Box(self.podman, self.spec, self._relay)
        try:
            other._start(["/bin/true"], {}, None, b"")
        except SandboxError:
            return False
        finally:
            reaper.remove(self.podman, other.name)
        return True

    def _lay_all(self, user: str, fault: Fault | None = None) -> None:
        """Lay what was gathered since the last time. `fault`: whose it is where that does not fit what is there."""
        image = self.podman.image(self.spec.image)
        folders = (self.spec.workdir or image.workdir,)
        job = LayJob(
            self._merged, self._shift, self._entries, user or image.user, folders, self._emptied, self._script
        )  # fmt: skip
        try:
            perform_in(self.podman, self._id, job)
        except OSError as error:
            what = f"files cannot be laid into {self.spec.image}: {error}"
            # Nothing is where it was in a container that the host took away meanwhile.
            if error.errno in UNFIT and self._state() != "gone" and mounted(self.podman, self._merged):
                raise Unfit(what, fault=fault) from error
            raise SandboxError(what) from error
        self._entries, self._emptied = [], []

    def _gates(self, stage: Stage | None) -> list[Gate]:
        return gates(self.spec.health, stage, self.podman.image(self.spec.image).entrypoint)

    def _kill(self) -> None:
        params = {"signal": "SIGKILL"}
        try:
            self.podman.request("post", f"/containers/{self._id}/kill", params=params, allow=(404, 409, 500))
        except SandboxError:
            pid = read_pid(Path(self._pid_file))
            if pid is None or self.podman.capabilities.rootless:
                raise
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _state(self) -> State:
        return state(self.podman, self._id)

    # --- watching ----------------------------------------------------------------------------------------------

    async def _watch(
        self,
        clock: TrialClock | None,
        stop: asyncio.Event | None,
        on_output: OnOutput | None,
        output_limit: int,
        gated: Sequence[Gate],
    ) -> Ending:
        begun = time.monotonic()
        path = self._userdata(self.podman.paths.graph) / "ctr.log"
        log = LogTail(path, output_limit, on_output, gated, self._heard)
        pid = read_pid(Path(self._pid_file))
        group = Cgroup.of_container(self._id, pid)
        evidence: dict[str, Any] = {}
        killed: Reason | None = None
        ask_at = over_at = 0.0
        tick, disk_at = _TICK_FIRST, begun + _DISK_EVERY
        with exit_watch(pid) as gone, contextlib.ExitStack() as waiting:
            if gated and clock is not None:
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
                    if all(gate.passed for gate in gated):
                        waiting.close()
                    elif killed is None and time.monotonic() > begun + sum(gate.limit for gate in gated):
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
                        if now > over_at + _GIVE_UP_AFTER:
                            if not gone.done():
                                raise SandboxError(f"container {self.name} does not end though it was killed")
                            break
                note_group(group, evidence)
            finally:
                if stopping is not None:
                    stopping.cancel()
        rc = read_exit(self._exit_file())
        if rc is None or (rc == _KILLED and killed is None and not evidence.get("oom_kills")):
            rc = await told_by_podman(lambda: self.podman.call(self._state))
        log.poll(to_end=True)
        self._heard = log.offset
        if log.dropped:
            evidence["output_dropped"] = log.dropped
        reason: Reason = killed or ("lost" if rc is None else "exit")
        if reason == "exit" and rc == _KILLED and evidence.get("oom_kills"):
            reason = "oom"
        stdout = log.output("stdout")
        shut = next((gate for gate in gated if not gate.passed), None)
        if shut is not None and reason not in ("lost", "stopped"):
            reason, stdout, evidence["failed"] = "unhealthy", shut.said, shut.what
        return Ending(rc, reason, stdout, log.output("stderr"), time.monotonic() - begun, evidence)

    def _exit_file(self) -> Path:
        return self.podman.paths.tmp / "exits" / self._id

    def _userdata(self, base: Path) -> Path:
        return base / "overlay-containers" / self._id / "userdata"

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
            mount(self.podman, self._id, self._merged)
            try:
                found = perform_in(self.podman, self._id, job)
            except OSError as error:
                raise SandboxError(f"the files of container {self.name} cannot be read: {error}") from error
            # What is missing in a container that was taken away meanwhile was not missing in it.
            if not mounted(self.podman, self._merged):
                raise SandboxError(f"container {self.name} vanished while its files were read")
            return found

        return await self.podman.call(blocking)


@contextlib.asynccontextmanager
async def open_box(podman: Podman, spec: BoxSpec) -> AsyncIterator[Box]:
    """A box; its container is removed on the way out, off the critical path."""
    with lent_folder(podman.paths) if spec.several else contextlib.nullcontext() as folder:
        if folder is not None:
            spec = replace(spec, mounts=(*spec.mounts, Mount(str(folder), relay.INSIDE)))
        box = Box(podman, spec, folder)
        try:
            yield box
        finally:
            await box.close()
