"""What the proxy adds to the engine: latency, token rate and CPU, beside calling the engine directly in the same run.

    python -m benchmarks proxy
    python -m benchmarks.proxy --serve 9009 --keys keys.txt [--clients 64]     # for other clients; ends with stdin

The engine is a stand-in that plays 50 pieces of text, at once or 20 ms apart on an absolute schedule. "direct" iterates
it in this process; "proxy" is the same engine behind the proxy in a second process, asked over loopback by a client
with raw sockets. A fresh request brings a 9 kB conversation that has to be rendered whole; a continued one adds a
tool's result to a conversation the proxy knows. CPU is the proxy process's own, engine included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.measure import Measure
from benchmarks.stand_in import StandIn
from lego.engine.base import GenerationRequest, Sampled, Sampling
from lego.proxy.app import Proxy
from lego.proxy.session import Caps, SessionSpec
from lego.trajectory.render import Rendering, open_rendering
from lego.trajectory.tokenizer import load_tokenizer

PIECES, PACE = 50, 0.020
CLIENTS, REPEATS = 64, 3
_TICKS = os.sysconf("SC_CLK_TCK")


class PacedEngine(StandIn):
    """Plays `PIECES` pieces; a prompt with `[i=20]` near its end gets them PACE seconds apart."""

    def __init__(self, rendering: Rendering) -> None:
        encode = rendering.tokenizer.encode
        self._pieces = [list(encode(f"tok{i:02d} ")) for i in range(PIECES)]
        self._pieces[-1].append(rendering.stop_ids[0])
        self._decode = rendering.decode

    async def generate(self, request: GenerationRequest) -> AsyncIterator[Sampled]:
        paced = "[i=20]" in self._decode(request.prompt_ids[-100:])
        begun = time.monotonic()
        for number, piece in enumerate(self._pieces):
            if paced:
                await asyncio.sleep(max(0.0, begun + (number + 1) * PACE - time.monotonic()))
            yield Sampled(piece, [-0.1] * len(piece), "stop" if number == PIECES - 1 else None)


def rendering_of(folder: str) -> Rendering:
    return open_rendering(load_tokenizer(folder), "tiny-chatml")


async def serve(folder: str, port: int, clients: int, keys: str) -> None:
    """A proxy with one session a client, until stdin ends."""
    rendering = rendering_of(folder)
    async with Proxy(PacedEngine(rendering), rendering) as proxy:
        with tempfile.TemporaryDirectory(prefix="lp", dir="/tmp") as sockets:
            tokens = [f"sk-bench-{number}" for number in range(clients)]
            contexts = []
            for number, token in enumerate(tokens):
                (Path(sockets) / str(number)).mkdir()
                caps = Caps(max_turns=0, max_output_tokens=4096, context=1 << 20)
                spec = SessionSpec(id=str(number), socket_dir=Path(sockets) / str(number), token=token, caps=caps)
                contexts.append(proxy.session(spec))
                await contexts[-1].__aenter__()
            bound = await proxy.listen(port=port)
            Path(keys).write_text("\n".join(tokens))
            print(bound, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            for context in contexts:
                await context.__aexit__(None, None, None)


@dataclass
class Client:
    """One keep-alive connection and the conversation it holds."""

    port: int
    token: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, content: str, *, stream: bool, fresh: bool) -> tuple[float, float]:
        """Seconds to the first piece and to the end."""
        if fresh or not self.messages:
            self.messages = history()
        self.messages.append({"role": "user", "content": content})
        body = {"model": "policy", "messages": self.messages, "tools": TOOLS, "stream": stream}
        payload = json.dumps(body).encode()
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        reader, writer = self.streams
        begun = time.perf_counter()
        writer.write(
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n".encode()
            + payload
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if not head.startswith(b"http/1.1 200"):
            raise RuntimeError(f"the proxy answered {head!r}")
        first = 0.0
        if stream:
            text = ""
            while size := int(await reader.readline(), 16):
                chunk = await reader.readexactly(size + 2)
                if b'"content": "tok' in chunk:
                    first = first or time.perf_counter() - begun
                text += chunk[:size].decode()
            await reader.readline()
            said = "".join(
                json.loads(line[6:])["choices"][0]["delta"].get("content", "")
                for line in text.split("\n\n")
                if line.startswith("data: {")
            )
        else:
            length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
            said = json.loads(await reader.readexactly(length))["choices"][0]["message"]["content"]
            first = time.perf_counter() - begun
        total = time.perf_counter() - begun
        if not said.startswith("tok00 ") or f"tok{PIECES - 1}" not in said:
            raise RuntimeError(f"not the reply that was played: {said[:200]!r}")
        self.messages.append({"role": "assistant", "content": said})
        return first, total


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool of the agent. " * 8,
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        },
    }
    for name in ("bash", "edit", "read", "grep")
]


def history() -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are a coding agent. " * 40}]
    for turn in range(4):
        messages.append({"role": "user", "content": f"turn {turn}: " + "some tool output line\n" * 40})
        messages.append({"role": "assistant", "content": f"answer {turn} " * 30})
    return messages


Ask = Callable[[int, int], Awaitable[tuple[float, float]]]


async def measure(ask: Ask, clients: int, each: int, pid: int) -> dict[str, float]:
    """Medians over all requests: seconds to first piece and to the end; pieces a second; CPU seconds a request."""
    cpu, begun = cpu_of(pid), time.perf_counter()

    async def one(client: int) -> list[tuple[float, float]]:
        return [await ask(client, number) for number in range(each)]

    timings = [timing for result in await asyncio.gather(*map(one, range(clients))) for timing in result]
    wall = time.perf_counter() - begun
    return {
        "first": statistics.median(first for first, _ in timings),
        "total": statistics.median(total for _, total in timings),
        "rate": len(timings) * PIECES / wall,
        "cpu": (cpu_of(pid) - cpu) / len(timings),
    }


def cpu_of(pid: int) -> float:
    """CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@dataclass(frozen=True)
class Case:
    """`goals`: key of `measure` -> what it should come to."""

    name: str
    clients: int
    each: int
    direct: Ask
    proxied: Ask
    goals: dict[str, str] = field(default_factory=dict)


async def compare(folder: str, port: int, tokens: list[str], pid: int) -> list[Measure]:
    rendering = rendering_of(folder)
    engine = PacedEngine(rendering)
    texts = ("x" * 400, "x" * 400 + "[i=20]")
    prompts = [np.asarray(rendering.tokenizer.encode(text), np.int32) for text in texts]
    connections = [Client(port, token) for token in tokens]

    def direct(paced: bool) -> Ask:
        ids = prompts[int(paced)]

        async def ask(client: int, number: int) -> tuple[float, float]:
            begun, first = time.perf_counter(), 0.0
            async for _ in engine.generate(GenerationRequest("x", str(client), ids, Sampling(4096))):
                first = first or time.perf_counter() - begun
            return first, time.perf_counter() - begun

        return ask

    def proxied(paced: bool, stream: bool, fresh: bool) -> Ask:
        mark = "[i=20]" if paced else "[i=0]"
        return lambda client, number: connections[client].ask(f"{client} {number} {mark}", stream=stream, fresh=fresh)

    for _ in range(10):
        await measure(proxied(False, True, False), CLIENTS, 1, pid)
    added, streams = {"total": "at most +1 ms"}, {"rate": "at least 0.97 of it", "first": "at most 60 ms"}
    cases = [
        Case("whole, continued", 1, 100, direct(False), proxied(False, False, False), added),
        Case("whole, fresh", 1, 100, direct(False), proxied(False, False, True)),
        Case("stream, continued", 1, 60, direct(False), proxied(False, True, False)),
        Case("stream at 20 ms, continued", CLIENTS, 3, direct(True), proxied(True, True, False), streams),
        Case("stream at 20 ms, fresh", CLIENTS, 3, direct(True), proxied(True, True, True)),
    ]
    return [one for case in cases for one in await _measured(case, connections, pid)]


async def _measured(case: Case, connections: list[Client], pid: int) -> list[Measure]:
    runs = []
    for _ in range(REPEATS):
        base = await measure(case.direct, case.clients, case.each, os.getpid())
        for connection in connections:
            connection.messages = []
        runs.append((base, await measure(case.proxied, case.clients, case.each, pid)))
    base, ours = ({key: statistics.median(run[side][key] for run in runs) for key in runs[0][0]} for side in (0, 1))
    shown = [("total", "whole reply", "ms", 1e3), ("cpu", "CPU a request", "ms", 1e3)]
    if case.clients > 1:
        shown = [
            ("first", "first piece", "ms", 1e3),
            ("rate", "pieces", "1/s", 1.0),
            ("cpu", "CPU a request", "ms", 1e3),
        ]
    return [
        Measure(
            f"{case.name}, {case.clients} at once: {label}",
            unit,
            ours[key] * scale,
            base[key] * scale,
            "engine alone",
            case.goals.get(key, ""),
        )
        for key, label, unit, scale in shown
    ]


def run() -> list[Measure]:
    with tempfile.TemporaryDirectory() as scratch:
        folder, keys = _policy(scratch), f"{scratch}/keys"
        command = [sys.executable, "-m", "benchmarks.proxy", "--serve", "0", "--keys", keys, "--policy", folder]
        with subprocess.Popen(
            [*command, "--clients", str(CLIENTS)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as server:
            assert server.stdout is not None and server.stdin is not None
            port = int(server.stdout.readline())
            try:
                return uvloop.run(compare(folder, port, Path(keys).read_text().split(), server.pid))
            finally:
                server.stdin.close()


def _policy(scratch: str) -> str:
    """A folder with a tokenizer that knows the benchmark's words."""
    from lego.trainer.tiny import make_tiny

    folder = Path(scratch, "policy")
    corpus = [str(message["content"]) for message in history()] + [f"tok{i:02d} [i=20]" for i in range(100)]
    make_tiny(folder, 0, corpus)
    return str(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", type=int, required=True, metavar="PORT")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--policy", default="", help="folder with a tokenizer; empty makes a tiny one")
    parser.add_argument("--keys", default="keys.txt", help="where the clients' tokens are written")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        uvloop.run(serve(args.policy or _policy(scratch), args.serve, args.clients, args.keys))


if __name__ == "__main__":
    main()
