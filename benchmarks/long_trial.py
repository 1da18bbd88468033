"""What a turn costs as its trial grows: 200 turns to 200k tokens, each request bringing the whole history again.

    python -m benchmarks long_trial

The harness resends everything as JSON, so reading it grows with the trial and cannot be helped: the peer is a bare
server that reads and parses the same bodies. What the proxy adds to that should stay flat, for only what is new is
rendered and kept. The engine is a stand-in that answers at once. Times are of CPU, so that other work does not count.
Memory is what Python and numpy still hold when a trial has ended and its session is open.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from benchmarks.measure import Measure
from benchmarks.stand_in import StandIn
from lego.engine.base import GenerationRequest, Sampled
from lego.proxy.app import MAX_BODY, Proxy
from lego.proxy.session import Caps, Session, SessionSpec
from lego.trainer.tiny import make_tiny
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_tokenizer

TURNS, TOKENS = 200, 200_000
WINDOW = 20
"""Turns that one number is the median of."""

TOOLS = [
    {"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": {
        "type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}}},
]  # fmt: skip
LINE = "src/window.py:{n}: def total(items, n): while i <= n: s += items[i]\n"


class CallingEngine(StandIn):
    """Answers every request at once with one and the same tool call."""

    def __init__(self, rendering: Rendering) -> None:
        special = rendering.tokenizer.convert_tokens_to_ids
        text = rendering.tokenizer.encode("bash\ncat src/window.py | head -40")
        marks = [int(special(mark)) for mark in ("<tool_call>", "</tool_call>")]
        self._reply = [marks[0], *text, marks[1], rendering.stop_ids[0]]

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        yield Sampled(self._reply, [-0.1] * len(self._reply), "stop")


class Connection:
    """One kept-alive connection over a unix socket."""

    def __init__(self, path: Path, token: str) -> None:
        self.path, self.token = path, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, payload: bytes) -> tuple[float, Any]:
        """CPU seconds of both ends to the whole answer, and the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_unix_connection(str(self.path), limit=2**24)
        reader, writer = self._streams
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        begun = time.thread_time()
        writer.write(head.encode() + payload)
        said = (await reader.readuntil(b"\r\n\r\n")).lower()
        body = await reader.readexactly(int(said.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0]))
        took = time.thread_time() - begun
        if not said.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the proxy answered {body!r}")
        return took, json.loads(body)


async def trial(ours: Connection, bare: Connection | None, lines: int) -> list[tuple[float, float, int]]:
    """One trial: CPU seconds of ours, of the bare server, and prompt tokens; a row a turn."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent."}]
    messages.append({"role": "user", "content": "The function in window.py is wrong. Fix it."})
    rows = []
    for turn in range(TURNS):
        payload = json.dumps({"model": "policy", "messages": messages, "tools": TOOLS}).encode()
        took, answer = await ours.post(payload)
        floor = (await bare.post(payload))[0] if bare is not None else 0.0
        rows.append((took, floor, answer["usage"]["prompt_tokens"]))
        reply = answer["choices"][0]["message"]
        output = "".join(LINE.format(n=turn * lines + i) for i in range(lines))
        messages += [reply, {"role": "tool", "tool_call_id": reply["tool_calls"][0]["id"], "content": output}]
    return rows


async def _bare(folder: Path) -> web.AppRunner:
    async def parse(request: web.Request) -> web.Response:
        json.loads(await request.read())
        return web.Response(body=b"{}", content_type="application/json")

    app = web.Application(client_max_size=MAX_BODY)
    app.router.add_post("/v1/chat/completions", parse)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, folder / "bare.sock").start()
    return runner


def _spec(folder: Path, name: str) -> SessionSpec:
    (folder / name).mkdir()
    caps = Caps(max_turns=0, max_output_tokens=4096, context=1 << 20)
    return SessionSpec(id=name, socket_dir=folder / name, token=f"sk-{name}", caps=caps)


async def compare(rendering: Rendering) -> list[Measure]:
    line = len(rendering.tokenizer.encode(LINE.format(n=1234)))
    lines = max(1, TOKENS // TURNS // line)
    with tempfile.TemporaryDirectory(prefix="ll", dir="/tmp") as name:
        folder = Path(name)
        runner = await _bare(folder)
        async with Proxy(CallingEngine(rendering), rendering) as proxy:

            def session(name: str) -> Any:
                return proxy.session(_spec(folder, name))

            async with session("warm") as warm:
                await trial(Connection(warm.socket_path, warm.token), None, 1)
            async with session("timed") as timed:
                bare = Connection(folder / "bare.sock", "")
                rows = await trial(Connection(timed.socket_path, timed.token), bare, lines)
            async with session("weighed") as weighed:
                held = await _held(weighed, lines)
        await runner.cleanup()
    return [*_times(rows), Measure("memory of a session at its end", "MiB", held, _least(rows), "its ids, once")]


async def _held(session: Session, lines: int) -> float:
    """MiB that a trial leaves in memory while its session is open."""
    connection = Connection(session.socket_path, session.token)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        await trial(connection, None, lines)
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / 2**20
    finally:
        tracemalloc.stop()


def _least(rows: Sequence[tuple[float, float, int]]) -> float:
    return rows[-1][2] * 4 / 2**20


def _times(rows: Sequence[tuple[float, float, int]]) -> list[Measure]:
    out = []
    for end in (WINDOW, TURNS // 2, TURNS):
        part = rows[end - WINDOW : end]
        ours, floor = (statistics.median(row[side] for row in part) * 1e3 for side in (0, 1))
        what = f"turn {end - WINDOW + 1} to {end}, {part[-1][2] / 1e3:.0f}k tokens"
        out.append(Measure(what, "ms CPU", ours, floor, "parsing alone", "added: the same in all"))
    return out


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory() as scratch:
        corpus = [LINE.format(n=n) for n in range(0, 9000, 7)] + ["bash\ncat src/window.py | head -40"]
        folder = Path(scratch, "policy")
        make_tiny(folder, 0, corpus)
        return uvloop.run(compare(open_rendering(load_tokenizer(str(folder)), "tiny-chatml")))
