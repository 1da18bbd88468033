"""tiny-agent: a coding agent in one file of standard library, for checks and for runs of many short trials.

It speaks Chat Completions over a unix socket, offers two tools (bash, submit) and keeps the history append-only: what
the model said goes back exactly as it came. Imports are few because each costs start-up time.

    tiny_agent.py --socket PATH --model NAME [--max-turns N] [--max-tokens N] [--temperature T] [--stream yes] TASK

The API token is read from LEGO_TOKEN. Exit codes: 0 submitted; 3 out of turns; 4 the model stopped using tools, or the
API refused the request; 5 the API cannot be reached or keeps failing.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

SUBMITTED, OUT_OF_TURNS, GAVE_UP, NO_API = 0, 3, 4, 5
COMMAND_SECONDS = 30
OUTPUT_BYTES = 4000
RETRIES = 3
IDLE_REPLIES = 3
NUDGE = "Call a tool: bash or submit."
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a bash command in the working directory and return its output.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit",
            "description": "Say that the task is done.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


class Refused(Exception):
    """The API answered with a status that asking again will not change."""


class Unreachable(Exception):
    """No usable answer from the API."""


def body_lines(answer, chunked):
    """The lines of an HTTP body, which may come in chunks."""
    if not chunked:
        yield from answer
        return
    pending = b""
    while size := int(answer.readline().split(b";")[0] or b"0", 16):
        pending += answer.read(size)
        answer.readline()
        *lines, pending = pending.split(b"\n")
        for line in lines:
            yield line + b"\n"
    if pending:
        yield pending


def merge(message, delta):
    """Add one streamed delta to the message that is being put together."""
    for key in ("content", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for piece in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= piece["index"]:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[piece["index"]], piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


def ask_once(path, token, request):
    """One request and its assistant message."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        payload = json.dumps(request).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: lego\r\nConnection: close\r\n"
            f"Authorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        connection.sendall(head.encode() + payload)
        with connection.makefile("rb") as answer:
            status_line = answer.readline().split()
            if len(status_line) < 2:
                raise Unreachable("the connection closed without an answer")
            chunked = False
            while header := answer.readline().strip().lower():
                chunked = chunked or header == b"transfer-encoding: chunked"
            lines = body_lines(answer, chunked)
            status = int(status_line[1])
            if status >= 400:
                text = b"".join(lines).decode(errors="replace")
                kind = Unreachable if status >= 500 or status == 429 else Refused
                raise kind(f"HTTP {status}: {text[:500]}")
            if not request.get("stream"):
                return json.loads(b"".join(lines))["choices"][0]["message"]
            message, complete = {"role": "assistant", "content": None}, False
            for line in lines:
                if line.startswith(b"data:"):
                    data = line[5:].strip()
                    if data == b"[DONE]":
                        complete = True
                        break
                    for choice in json.loads(data).get("choices") or []:
                        merge(message, choice.get("delta") or {})
            if not complete:
                raise Unreachable("the stream was cut")
            return message


def ask(path, token, request):
    for attempt in range(RETRIES):
        try:
            return ask_once(path, token, request)
        except (OSError, ValueError, LookupError, Unreachable) as error:
            problem = error
            if attempt + 1 < RETRIES:
                time.sleep(2**attempt)
    raise Unreachable(str(problem))


class Clip:
    """The first and the last bytes of an output of any length."""

    def __init__(self, limit):
        self.half = limit // 2
        self.head, self.tail, self.dropped = bytearray(), bytearray(), 0

    def add(self, data):
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        excess = len(self.tail) - self.half
        if excess > 0:
            del self.tail[:excess]
            self.dropped += excess

    def text(self):
        middle = f"\n[{self.dropped} bytes left out]\n".encode() if self.dropped else b""
        return (self.head + middle + self.tail).decode(errors="replace")


def bash(command, env):
    """Run a command; its output, and its exit code where that says more than the output does."""
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    try:
        process = subprocess.Popen(
            [shell, "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    except (OSError, ValueError) as error:
        return f"[cannot run: {error}]"
    clip, ending = Clip(OUTPUT_BYTES), ""
    deadline = time.monotonic() + COMMAND_SECONDS
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            # A command may leave a child behind that holds the pipe open: its own exit ends the wait as well.
            exited = process.poll() is not None
            if selector.select(0 if exited else 0.05):
                data = os.read(pipe, 65536)
                if not data:
                    break
                clip.add(data)
            elif exited:
                break
            if time.monotonic() > deadline:
                ending = f"[killed after {COMMAND_SECONDS} s]"
                break
    process.stdout.close()
    if not ending:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            ending = f"[killed after {COMMAND_SECONDS} s]"
    if ending:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    output = clip.text().rstrip("\n")
    if not ending and (process.returncode or not output):
        ending = f"[exit {process.returncode}]"
    return "\n".join(part for part in (output, ending) if part)


def use_tool(call, env):
    """The text that answers a tool call, or None for a submission."""
    name = call["function"]["name"]
    if name == "submit":
        return None
    if name != "bash":
        return f"[no such tool: {name}]"
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, LookupError, TypeError) as error:
        return f"[bad arguments: {error!r}]"
    if not isinstance(command, str):
        return "[bad arguments: command must be a string]"
    print(f"$ {command}", flush=True)
    output = bash(command, env)
    print(output, flush=True)
    return output


def work(options, task, token, env):
    messages = [{"role": "user", "content": task}]
    request = {"model": options["model"], "messages": messages, "tools": TOOLS}
    if "max-tokens" in options:
        request["max_tokens"] = int(options["max-tokens"])
    if "temperature" in options:
        request["temperature"] = float(options["temperature"])
    if options.get("stream") == "yes":
        request["stream"] = True
    idle = 0
    for _ in range(int(options.get("max-turns", 100))):
        message = ask(options["socket"], token, request)
        messages.append({key: value for key, value in message.items() if value is not None or key == "content"})
        calls = message.get("tool_calls") or []
        if message.get("content"):
            print(message["content"], flush=True)
        idle = 0 if calls else idle + 1
        if idle == IDLE_REPLIES:
            print("[no tool call]", flush=True)
            return GAVE_UP
        if not calls:
            messages.append({"role": "user", "content": NUDGE})
        for call in calls:
            answer = use_tool(call, env)
            if answer is None:
                return SUBMITTED
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": answer})
    return OUT_OF_TURNS


def main(arguments):
    options = {}
    while arguments and arguments[0].startswith("--"):
        name = arguments.pop(0)[2:]
        if not name:
            break
        options[name] = arguments.pop(0)
    env = dict(os.environ)
    token = env.pop("LEGO_TOKEN", "")
    try:
        return work(options, arguments[0], token, env)
    except Refused as error:
        print(f"[refused: {error}]", flush=True)
        return GAVE_UP
    except Unreachable as error:
        print(f"[no answer: {error}]", flush=True)
        return NO_API


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
