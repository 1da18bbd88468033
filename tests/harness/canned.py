"""A chat server on a unix socket that answers from a list, and a sandbox to run a launch against it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

from lego.clock import TrialClock
from lego.harness.launch import Launch
from lego.sandbox.container import open_box
from lego.sandbox.create import BoxSpec, ImageMount, Limits, Mount
from lego.sandbox.podman import Podman
from lego.sandbox.seal import INSIDE
from lego.tasks.task import File
from lego.trajectory.messages import Message

Answer = Message | int
"""A reply, or the HTTP status of a refusal."""


@dataclass
class Canned:
    """`requests` are the bodies received, `tokens` what each was authorised with."""

    answers: Sequence[Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True


@contextmanager
def serve(folder: Path, answers: Sequence[Answer]) -> Iterator[Canned]:
    """Serve `answers` in order on folder/proxy.sock; a request after the last is refused with 400."""
    canned = Canned(answers)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def address_string(self) -> str:
            return "unix"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                index = len(canned.requests)
                canned.requests.append(body)
                canned.tokens.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
            answer = canned.answers[index] if index < len(canned.answers) else 400
            if isinstance(answer, int):
                self.reply(answer, {"error": {"message": "refused", "type": "invalid_request_error"}})
            elif body.get("stream"):
                self.stream(openai_message(answer, index))
            else:
                self.reply(200, completion(answer, index))

        def reply(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self, message: dict[str, Any]) -> None:
            """Every delta in two halves, and chunk borders that fall inside lines."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            events: list[dict[str, Any]] = [{"delta": {"role": "assistant"}}]
            events += [{"delta": {"content": part}} for part in halves(message["content"] or "")]
            for index, call in enumerate(message.get("tool_calls", [])):
                name = {"index": index, "id": call["id"], "function": {"name": call["function"]["name"]}}
                events.append({"delta": {"tool_calls": [name]}})
                for part in halves(call["function"]["arguments"]):
                    events.append({"delta": {"tool_calls": [{"index": index, "function": {"arguments": part}}]}})
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            events.append({"delta": {}, "finish_reason": reason})
            text = "".join(f"data: {json.dumps({'choices': [event]})}\n\n" for event in events) + "data: [DONE]\n\n"
            for part in halves(text.encode()):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")

    server = _Server(str(folder / "proxy.sock"), Handler)
    (folder / "proxy.sock").chmod(0o666)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield canned
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def halves(value: Any) -> list[Any]:
    middle = len(value) // 2
    return [value[:middle], value[middle:]]


def openai_message(message: Message, index: int) -> dict[str, Any]:
    calls = [
        {"id": f"call_{index}_{n}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for n, call in enumerate(message.tool_calls)
    ]
    return {"role": "assistant", "content": message.content or None} | ({"tool_calls": calls} if calls else {})


def completion(message: Message, index: int) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{index}", "object": "chat.completion", "created": 0, "model": "policy",
        "choices": [{"index": 0, "message": openai_message(message, index),
                     "finish_reason": "tool_calls" if message.tool_calls else "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15},
    }  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """How a sealed run ended; `files` are those of the workspace as the run left them."""

    code: int | None
    output: str
    files: Mapping[str, bytes | None]


async def run_sealed(
    podman: Podman,
    image: str,
    launch: Launch,
    sockets: Path,
    workspace: Mapping[str, bytes] | None = None,
    seconds: float = 120,
    memory: int = Limits.memory,
) -> Ran:
    """Run a launch as uid 1000 in a sealed box, as a trial does."""
    laid = {path: File(data) for path, data in (workspace or {}).items()} | dict(launch.files)
    sockets.chmod(0o755)
    spec = BoxSpec(
        image=image,
        limits=Limits(memory=memory),
        user="1000:1000",
        workdir="/app",
        workspace=laid,
        mounts=[Mount(str(sockets), INSIDE)],
        image_mounts=[ImageMount(*launch.image_mount)],
    )
    async with open_box(podman, spec) as box:
        ending = await box.run(launch.argv, env=launch.env, stdin=launch.stdin or b"", clock=TrialClock(seconds))
        files = await box.read(list(workspace)) if workspace else {}
    return Ran(ending.rc, (ending.stdout + ending.stderr).decode(errors="replace"), files)
