# ruff: noqa: E501 -- a fault a line
"""Faults of the infrastructure, put into one attempt of one trial, or into one verification of it.

The seams are those where the world outside answers: podman's replies, the engine's, the file systems, the socket, the
clock. Each fault strikes once; what is tried again finds everything in order.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from lego.engine.base import GenerationRequest, Sampled
from lego.engine.scripted import ScriptedEngine
from lego.errors import EngineError, SandboxError
from lego.proxy.app import Proxy
from lego.rundb import trials
from lego.rundb.store import Store
from lego.sandbox import container, reaper
from lego.sandbox.podman import Podman
from lego.sandbox.rootfs import Job, LayJob


@dataclass(frozen=True)
class Fault:
    """`where`: the step that it strikes. `said`: what the recorded reason must speak of (a regular expression)."""

    name: str
    where: str
    said: str
    error: Callable[[], BaseException] | None = None


def refused(what: str) -> Callable[[], BaseException]:
    return lambda: SandboxError(f"podman refused it: {what}")


def no(number: int) -> Callable[[], BaseException]:
    return lambda: OSError(number, os.strerror(number))


def _podman(prefix: str) -> tuple[Fault, ...]:
    """What podman, its store and the file systems can do, to an agent's container as to a verifier's."""
    return (
        Fault(f"{prefix}-locks-out", "create", "allocating lock", refused("allocating lock for new container: exceeded num_locks (2048)")),
        Fault(f"{prefix}-disk-full", "create", "no space left", refused("creating read-write layer: no space left on device")),
        Fault(f"{prefix}-image-missing", "create", "image not known", refused("localhost/lego: image not known")),
        Fault(f"{prefix}-service-dead", "line", "does not answer", lambda: requests.ConnectionError("refused")),
        Fault(f"{prefix}-podman-hangs", "line", "did not answer", lambda: requests.ReadTimeout("read timed out")),
        Fault(f"{prefix}-mount-lost", "mount", "stale file handle", refused("mounting storage: stale file handle")),
        Fault(f"{prefix}-no-memory", "start", "cannot allocate memory", refused("fork/exec /usr/bin/conmon: cannot allocate memory")),
        Fault(f"{prefix}-runtime-broken", "start", "cgroup", refused("OCI runtime error: unable to apply cgroup configuration")),
        Fault(f"{prefix}-no-room-to-lay", "lay", "No space left", no(errno.ENOSPC)),
        Fault(f"{prefix}-read-error", "read", "Input/output error", no(errno.EIO)),
        Fault(f"{prefix}-own-bug", "read", "unexpected RecursionError: too deep .*errors.log", lambda: RecursionError("too deep")),
        Fault(f"{prefix}-container-lost", "lost", "vanished|lost"),
        Fault(f"{prefix}-monitor-killed", "conmon", "vanished|lost"),
    )  # fmt: skip


ROLLOUT = (
    *_podman("r"),
    Fault("r-engine-dead", "generate", "CUDA", lambda: EngineError("CUDA error: device-side assert triggered")),
    Fault(
        "r-engine-nan", "generate", "not finite", lambda: EngineError("the log-prob of a sampled token is not finite")
    ),
    Fault("r-engine-bug", "generate", "replies were lost", lambda: RuntimeError("index out of range")),
    Fault("r-engine-cut", "cut", "replies were lost"),
    Fault("r-engine-silent", "silent", "replies were lost"),
    Fault("r-socket-gone", "socket", "socket of the proxy vanished"),
    Fault("r-clock-jumps", "clock", "lease|worker"),
)
VERIFY = _podman("v")


class Injector:
    """Holds the faults by task, and strikes each at its first chance: at the first attempt of the task's sample 0."""

    def __init__(self, store: Store, podman: Podman, proxy: Proxy, faults: tuple[Fault, ...]) -> None:
        self._store, self._podman, self._proxy = store, podman, proxy
        self._pending = {fault.name: fault for fault in faults}
        self._boxes: dict[str, tuple[str, str]] = {}
        self._here = threading.local()
        self.request, self.perform, self.send = podman.request, container.perform_in, requests.Session.send

    def take(self, trial: str, kind: str, *steps: str) -> Fault | None:
        """The fault that strikes this trial now, at one of `steps`; each is given out once."""
        # Podman's threads ask, too.
        reader = Store.open_read_only(self._store.path)
        row = reader.row("SELECT task_id, sample, attempt FROM trials WHERE id = ?", (int(trial or 0),))
        reader.close()
        if row is None or row["sample"] or row["attempt"] != 1 or row["task_id"][0] != kind:
            return None
        fault = self._pending.get(row["task_id"])
        if fault is None or fault.where not in steps:
            return None
        return self._pending.pop(fault.name)

    # --- podman ------------------------------------------------------------------------------------------------

    def on_request(self, method: str, path: str, **how: Any) -> Any:
        if path == "/containers/create":
            body = json.loads(how["data"])
            kind = {"verify": "v", "oracle": "o"}.get(body["labels"].get("lego.kind", ""), "r")
            self._here.box = (body["labels"][reaper.TRIAL], kind)
            self._boxes[body["name"]] = self._here.box
            self._strike("create")
            if fault := self.take(*self._here.box, "line"):
                self._here.line = fault
                try:
                    return self.request(method, path, **how)
                finally:
                    self._here.line = None
        elif method == "post" and path.endswith("/mount"):
            self._strike("mount")
        elif method == "post" and path.endswith("/start"):
            self._strike("start")
            answer = self.request(method, path, **how)
            self._after_start(path.split("/")[2])
            return answer
        answer = self.request(method, path, **how)
        name = path.split("/")[2] if path.startswith("/containers/") else ""
        if name in self._boxes and path.endswith("/json") and answer.status_code < 400:
            self._boxes[answer.json()["Id"]] = self._boxes[name]
        return answer

    def on_line(self, session: requests.Session, *args: Any, **how: Any) -> Any:
        """In the place of requests' own: the line to the service breaks, in the thread that is struck."""
        fault = getattr(self._here, "line", None)
        if fault is not None and fault.error is not None:
            raise fault.error()
        return self.send(session, *args, **how)

    def _strike(self, step: str) -> None:
        fault = self.take(*getattr(self._here, "box", ("", "")), step)
        if fault is not None and fault.error is not None:
            raise fault.error()

    def _after_start(self, name: str) -> None:
        """A verifier's container is struck as soon as it runs; an agent's, once it has asked the engine."""
        trial, kind = self._boxes.get(name, ("", ""))
        if kind == "v" and (fault := self.take(trial, kind, "lost", "conmon")):
            self._end(name, fault.where)

    def _end(self, name: str, how: str) -> None:
        if how == "conmon":
            shown = self.request("get", f"/containers/{name}/json").json()
            conmon = int(Path(shown["ConmonPidFile"]).read_text())
            os.kill(conmon, signal.SIGKILL)
        reaper.remove(self._podman, name)

    def on_perform(self, podman: Podman, box: str, job: Job) -> object:
        trial, kind = self._boxes.get(box, ("", ""))
        step = "lay" if isinstance(job, LayJob) else "read"
        fault = self.take(trial, kind, step) if trial else None
        if fault is not None and fault.error is not None:
            raise fault.error()
        return self.perform(podman, box, job)

    # --- engine, socket, clock ---------------------------------------------------------------------------------

    async def on_generate(self, engine: ScriptedEngine, request: GenerationRequest) -> AsyncIterator[Sampled]:
        trial = request.session.removeprefix("trial-")
        fault = self.take(trial, "r", "generate", "cut", "silent", "socket", "clock", "lost", "conmon")
        if fault is not None and fault.error is not None:
            raise fault.error()
        where = fault.where if fault else ""
        if where in ("lost", "conmon"):
            name = next(name for name, (of, kind) in self._boxes.items() if of == trial and name.startswith("lego-"))
            await self._podman.call(self._end, name, where)
        if where == "socket":
            next(Path(path) for path, s in self._proxy._by_socket.items() if s.spec.id == request.session).unlink()
        if where == "clock":
            self._store.execute("UPDATE trials SET lease_until = 1 WHERE id = ?", (int(trial),))
            # What another worker would do, before this one's heartbeat hides it.
            round_id = self._store.value("SELECT round_id FROM trials WHERE id = ?", (int(trial),))
            trials.reclaim(self._store, round_id, max_attempts=2)
        if where == "silent":
            return
        async for piece in engine.generate(request):
            yield piece
            if where == "cut":
                return
