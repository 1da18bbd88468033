"""Many whole trials with faults sprinkled in, and what is left of them afterwards: nothing.

    python -m benchmarks.soak [--trials 300] [--at-once 8] [--fault-every 12]

Every so often a container is taken away, podman's service is killed, the engine fails, or a lease runs out. It prints
what it counted and ends with 1 if anything was left behind, a row is not as it must be, or the driver has grown.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Container, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.scene import open_scene
from lego.engine.base import GenerationRequest, Sampled
from lego.engine.scripted import ScriptedEngine
from lego.errors import EngineError
from lego.rollout.settings import settings_for
from lego.rollout.site import Workshop
from lego.rollout.stopping import Stop
from lego.rollout.work import run_trials, run_verifications
from lego.rundb import rounds, trials
from lego.rundb.store import Store
from lego.sandbox import reaper
from lego.sandbox.podman import Podman

KINDS = ("container", "service", "engine", "lease")
GROWTH = 40 << 20
"""Bytes that the driver may grow by from a quarter of the way to the end: caches that fill, and no more."""


@dataclass
class Soaked:
    """`struck`: faults put in. `retried`: attempts lost to them. `*_left`: what of ours is still there, processes by
    their command. `rss`: bytes of the driver, early and at the end. `wrong`: what is not as it must be in the database,
    in words."""

    trials: int = 0
    seconds: float = 0.0
    struck: int = 0
    retried: int = 0
    solved: int = 0
    containers_left: int = 0
    mounts_left: int = 0
    sockets_left: int = 0
    processes_left: tuple[str, ...] = ()
    files_left: int = 0
    rss_early: int = 0
    rss_end: int = 0
    wrong: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        left = (self.containers_left, self.mounts_left, self.sockets_left, self.files_left)
        return not any(left) and not self.processes_left and not self.wrong and self.solved == self.trials and self.flat

    @property
    def flat(self) -> bool:
        return self.rss_end - self.rss_early < GROWTH


class _Disturber:
    """Strikes at every so-many-th request of the engine, in turn each kind; knows every container that was made."""

    def __init__(self, workshop: Workshop, every: int) -> None:
        self._podman, self._store, self._every = workshop.podman, workshop.run.store, every
        self._request, self._count = workshop.podman.request, itertools.count(1)
        self._kinds = itertools.cycle(KINDS)
        self.struck = 0
        self.boxes: dict[str, str] = {}

    def request(self, method: str, path: str, **how: Any) -> Any:
        answer = self._request(method, path, **how)
        if path.startswith("/containers/lego-") and path.endswith("/json") and answer.status_code < 400:
            body = answer.json()
            self.boxes[body["Id"]] = str(Path((body["GraphDriver"]["Data"] or {})["UpperDir"]).parent)
        return answer

    async def generate(self, engine: Any, request: GenerationRequest) -> AsyncIterator[Sampled]:
        if next(self._count) % self._every == 0:
            await self._strike(next(self._kinds), request.session.removeprefix("trial-"))
        async for piece in engine.generate(request):
            yield piece

    async def _strike(self, kind: str, trial: str) -> None:
        self.struck += 1
        if kind == "engine":
            raise EngineError("a fault that was put in")
        if kind == "lease":
            self._store.execute("UPDATE trials SET lease_until = 1 WHERE id = ?", (int(trial),))
            # What another worker would do, before this one's heartbeat hides it.
            round_id = self._store.value("SELECT round_id FROM trials WHERE id = ?", (int(trial),))
            trials.reclaim(self._store, round_id, max_attempts=10)
        elif kind == "container":
            await self._podman.call(self._take_away, trial)
        elif self._podman._service is not None:
            self._podman._service.send_signal(signal.SIGKILL)

    def _take_away(self, trial: str) -> None:
        query = {"all": "true", "filters": json.dumps({"label": [f"{reaper.TRIAL}={trial}"]})}
        for container in self._podman.request("get", "/containers/json", params=query).json() or ():
            if container["Id"] in self.boxes:
                reaper.remove(self._podman, container["Id"])


class _Disturbed(ScriptedEngine):
    disturber: _Disturber

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        async for piece in self.disturber.generate(super(), request):
            yield piece


async def soak(folder: Path, count: int, at_once: int, fault_every: int) -> Soaked:
    """Run `count` trials, `at_once` at a time, with a fault at every `fault_every`-th call; `folder` is its own."""
    scratch = folder / "tmp"
    scratch.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(scratch)
    try:
        return await _soak(folder, count, at_once, fault_every)
    finally:
        tempfile.tempdir = before


async def _soak(folder: Path, count: int, at_once: int, fault_every: int) -> Soaked:
    out, before = Soaked(), _processes({}).keys()
    async with open_scene(folder) as (workshop, _):
        run, store, podman = workshop.run, workshop.run.store, workshop.podman
        run.config.rollout.concurrency = run.config.verify.concurrency = at_once
        run.config.rollout.max_attempts = 10
        store.pause = 0.0  # faults are many, and what is measured is not how long they wait
        tasks = sorted(run.tasks)
        round_ = rounds.open_round(
            store, "train", ordinal=1, policy_version=run.newest_policy().version,
            tasks=[(task, "tiny-agent") for task in tasks], samples=count // len(tasks),
            settings=replace(settings_for(run.config, "train"), samples=count // len(tasks)).as_dict(),
        )  # fmt: skip
        site, stop, disturber = await workshop.site(round_), Stop(), _Disturber(workshop, fault_every)
        assert isinstance(site.engine, ScriptedEngine)
        site.engine.__class__ = _Disturbed
        site.engine.disturber = disturber  # type: ignore[attr-defined]
        podman.request = disturber.request  # type: ignore[method-assign]
        began, ended = time.monotonic(), 0

        def on_change() -> None:
            nonlocal ended
            ended += 1
            if ended == count // 2:  # two changes a trial
                out.rss_early = _rss()

        await asyncio.gather(
            run_trials(site, stop, on_change),
            run_verifications(workshop, round_, stop, lambda: None, lambda: not trials.unfinished(store, round_.id)),
        )
        await podman.drain()
        out.seconds, out.rss_end, out.struck = time.monotonic() - began, _rss(), disturber.struck
        out.trials = len(tasks) * (count // len(tasks))
        there = set(podman.cli("ps", "-aq", "--no-trunc").stdout.decode().split())
        out.containers_left = len(there & disturber.boxes.keys())
    _count_rows(store, round_.id, out)
    _count_left(podman, disturber.boxes, folder, out)
    out.processes_left = _lasting(disturber.boxes, before)
    return out


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _count_left(podman: Podman, boxes: dict[str, str], folder: Path, out: Soaked) -> None:
    """After everything was closed."""
    mounts = Path("/proc/mounts").read_text()
    out.mounts_left = sum(box in mounts or layer in mounts for box, layer in boxes.items())
    tag = reaper.Owner.current().tag
    out.sockets_left = sum(each.name.startswith(f"{tag}-") for each in podman.paths.sockets.iterdir())
    out.sockets_left += podman.socket.exists()
    # torch makes a folder for its compiler's cache wherever it is imported.
    out.files_left = sum(not each.name.startswith("torchinductor") for each in (folder / "tmp").iterdir())


def _processes(boxes: Iterable[str]) -> dict[int, str]:
    """Our children and the processes that name one of `boxes`: id to command line."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            name, _, rest = (process / "stat").read_text().rpartition(")")
        except OSError:
            continue
        if int(rest.split()[1]) == os.getpid() or any(box in line for box in boxes):
            found[int(process.name)] = line or f"{name}), ended and not waited for"
    return found


def _lasting(boxes: Iterable[str], before: Container[int], patience: float = 20.0) -> tuple[str, ...]:
    """What is there at the end of `patience` seconds: podman cleans up behind a container that is already gone."""
    deadline = time.monotonic() + patience
    while True:
        left = tuple(line for pid, line in _processes(boxes).items() if pid not in before)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _count_rows(store: Store, round_id: int, out: Soaked) -> None:
    rows = store.rows("SELECT * FROM trials WHERE round_id = ?", (round_id,))
    out.retried = sum(row["status"] == "failed" for row in rows)
    out.solved = int(store.value("SELECT count(DISTINCT trial_id) FROM verdicts WHERE reward = 1"))
    finished = [(row["task_id"], row["sample"]) for row in rows if row["status"] == "finished"]
    checks = {
        "the file is not sound": store.value("PRAGMA integrity_check") != "ok",
        "a row names one that is not there": bool(store.rows("PRAGMA foreign_key_check")),
        "a slot has not exactly one finished trial": len(set(finished)) != len(finished) or len(finished) != out.trials,
        "an attempt is still open": any(row["status"] in ("pending", "running") for row in rows),
        "a lease is still held": any(row["lease_owner"] or row["verify_owner"] for row in rows),
        "a lost attempt is not infrastructure's": any(
            row["status"] == "failed" and (row["fault"] != "infra" or row["submission"]) for row in rows
        ),
        "a verdict stands on a lost attempt": bool(
            store.value("SELECT 1 FROM verdicts v JOIN trials t ON t.id = v.trial_id WHERE t.status != 'finished'")
        ),
    }
    out.wrong = tuple(words for words, bad in checks.items() if bad)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--fault-every", type=int, default=12, help="calls of the engine from one fault to the next")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lego-soak-") as folder:
        out = asyncio.run(soak(Path(folder), options.trials, options.at_once, options.fault_every))
    print(json.dumps(asdict(out), indent=1))
    sys.exit(0 if out.clean else 1)


if __name__ == "__main__":
    main()
