"""Long-lived sealed containers in which bugs are tried out: one a worker, files swapped in and out."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from lego.errors import SandboxError
from lego.inject.recipe import APP, PYTHON
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, Limits, Mount
from lego.sandbox.ending import Ending
from lego.sandbox.podman import Podman
from lego.sandbox.seal import INSIDE, Seal, seal
from lego.tasks.task import File, Tree

SETTINGS = "/lego/pytest.ini"
_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
_LINE_LIMIT = 64 << 20
_START = 120.0
_PATIENCE = 60.0
_WAITING = 4
"""Times the CPU that a job may use which it may take by the clock, as in the container; a busy machine is slow."""


@dataclass(frozen=True)
class Ask:
    """Tests to run. `names` None means all in `files`; `limit` is seconds of CPU a test (some times as many by the
    clock), `budget` the same for all of them. `stop_at_limit`: a test that takes longer ends them all. `detail`: what
    failures showed; `coverage`: which lines each test ran."""

    files: Sequence[str]
    names: Sequence[str] | None = None
    limit: float = 10.0
    budget: float = 300.0
    stop_at_limit: bool = False
    detail: bool = False
    coverage: bool = False
    plugins: Sequence[str] = ()


@dataclass(frozen=True)
class Ran:
    """`tests`: id to what the run said of it (outcome, seconds, slow, failure, home). `uncollected`: files that could
    not be loaded, and why. `lines`: file to line to the ids of tests that ran it. `hung`: ended by force."""

    tests: Mapping[str, Mapping[str, Any]]
    uncollected: Mapping[str, str]
    lines: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    hung: bool = False
    log: str = ""

    def passed(self) -> frozenset[str]:
        return frozenset(name for name, said in self.tests.items() if said["outcome"] == "passed")


class Worker:
    """One container and the line to it. Every way of asking raises SandboxError where there is no answer, or where
    `check` does once it is there: what came about while the machine was in need tells nothing."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, facts: Mapping[str, Any],
        check: Callable[[], None],
    ) -> None:  # fmt: skip
        self._reader, self._writer, self._check = reader, writer, check
        self.facts = facts

    async def tests(self, ask: Ask, files: Mapping[str, bytes] | None = None) -> Ran:
        """Run tests with `files` (relative to the project) in place of what is there."""
        answer = await self._job(
            {
                "ask": {
                    "app": APP, "settings": SETTINGS, "files": list(ask.files), "limit": ask.limit,
                    "names": None if ask.names is None else list(ask.names), "detail": ask.detail,
                    "stop_at_limit": ask.stop_at_limit, "coverage": ask.coverage, "plugins": list(ask.plugins),
                },
                "budget": ask.budget,
            },
            {f"{APP}/{path}": data for path, data in (files or {}).items()},
            ask.budget,
        )  # fmt: skip
        return _ran(answer)

    async def command(
        self, argv: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str], read: Sequence[str]
    ) -> tuple[int, dict[str, bytes], str]:
        """Run a command as root with `files` (absolute) in place: its exit code, what `read` hold then, its output."""
        job = {"command": list(argv), "env": dict(env), "read": list(read), "budget": 60.0}
        answer = await self._job(job, files, 60.0)
        held = {path: base64.b64decode(data) for path, data in answer["held"].items()}
        return answer["rc"], held, answer["log"]

    async def _job(self, job: dict[str, Any], files: Mapping[str, bytes], budget: float) -> dict[str, Any]:
        job["files"] = {path: base64.b64encode(data).decode() for path, data in files.items()}
        try:
            async with asyncio.timeout(_WAITING * budget + _PATIENCE):
                self._writer.write(json.dumps(job).encode() + b"\n")
                await self._writer.drain()
                line = await self._reader.readline()
        except (TimeoutError, ConnectionError, ValueError) as error:  # a ValueError: more than a line may hold
            why = "out of time" if isinstance(error, TimeoutError) else error
            raise SandboxError(f"a container of the search does not answer: {why}") from error
        answer = _said(line)
        if "error" in answer:
            raise SandboxError(f"a job of the search failed: {answer['error']}")
        self._check()
        return answer


def _said(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise SandboxError("a container of the search ended in the middle of its work")
    said: dict[str, Any] = json.loads(line)
    return said


def _ran(answer: Mapping[str, Any]) -> Ran:
    tests: dict[str, Mapping[str, Any]] = {}
    uncollected: dict[str, str] = {}
    lines: dict[str, dict[int, tuple[str, ...]]] = {}
    ended = False
    for record in answer["records"]:
        ended = ended or "ended" in record
        if "id" in record:
            tests[record["id"]] = record
        elif "uncollected" in record:
            uncollected[record["uncollected"]] = record["why"]
        elif "lines" in record:
            names = record["tests"]
            for path, found in record["lines"].items():
                lines[path] = {int(line): tuple(names[number] for number in ids) for line, ids in found.items()}
    return Ran(tests, uncollected, lines, answer["hung"] or not ended, answer["log"])


@contextlib.asynccontextmanager
async def open_worker(
    podman: Podman, image: str, tree: Tree, settings: str, limits: Limits, name: str
) -> AsyncIterator[Worker]:
    """A worker in a fresh container with the project's files; the container goes away in the end.

    Raises SandboxError where it does not come up.
    """
    with seal(podman.paths) as sealed:
        lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        server = await asyncio.start_unix_server(
            lambda reader, writer: lines.put_nowait((reader, writer)), sealed.socket, limit=_LINE_LIMIT
        )
        sealed.socket.chmod(0o666)
        stop = asyncio.Event()
        spec = _spec(image, tree, settings, limits, name, sealed)
        async with open_box(podman, spec) as box:
            argv = [PYTHON, "-s", "-B", "/lego/worker.py", f"{INSIDE}/{sealed.socket.name}"]
            running = asyncio.create_task(box.run(argv, env={"PYTHONHASHSEED": "0"}, stop=stop))
            try:
                reader, writer = await _first(lines, running)
                facts = _said(await reader.readline())
                yield Worker(reader, writer, facts, podman.check_disk)
                writer.close()
            finally:
                stop.set()
                await asyncio.gather(running, return_exceptions=True)
                server.close()


async def _first(
    lines: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]], running: asyncio.Task[Ending]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    coming = asyncio.create_task(lines.get())
    await asyncio.wait({coming, running}, timeout=_START, return_when=asyncio.FIRST_COMPLETED)
    if coming.done():
        return coming.result()
    coming.cancel()
    if running.done():
        said = running.result().stderr.decode(errors="replace").strip().splitlines()
        raise SandboxError(f"the search's container ended at once: {said[-1] if said else 'nothing was said'}")
    raise SandboxError(f"the search's container did not come up within {_START:.0f} s")


def _spec(image: str, tree: Tree, settings: str, limits: Limits, name: str, sealed: Seal) -> BoxSpec:
    inside = resources.files("lego.inject.inside")
    workspace = {f"{APP}/{path}": file for path, file in tree.items()}
    for script in ("worker.py", "run_tests.py"):
        workspace[f"/lego/{script}"] = File(inside.joinpath(script).read_bytes())
    workspace[SETTINGS] = File(settings.encode())
    return BoxSpec(
        image, limits, labels={"lego.kind": "inject"}, mounts=(Mount(str(sealed.folder), INSIDE),), user="0",
        workdir=APP, workspace=workspace, run_id=name, capabilities=_CAPABILITIES,
    )  # fmt: skip
