"""Calls that the harness did not make."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from lego.harness import forward
from lego.proxy.app import Proxy
from lego.proxy.foreign import client_name
from lego.proxy.records import FinishedCall
from lego.proxy.session import Caps
from lego.trajectory.segments import segments
from tests.proxy.conftest import Open
from tests.proxy.families import family
from tests.proxy.parts import LetterRendering, PlayEngine, client
from tests.proxy.test_anthropic_client import api
from tests.proxy.test_calls import USER, ask
from tests.proxy.test_sessions import spec

US = os.readlink("/proc/self/exe")
HARNESS = {"User-Agent": "claude-cli/2.1.197 (external, sdk-cli)"}
CURL = {"User-Agent": "curl/8.5.0"}


async def test_a_program_that_is_not_the_harness_is_refused_and_named(opened: Open, rows: list[FinishedCall]) -> None:
    """Whatever token it has."""
    engine = PlayEngine("a|")
    async with opened(engine, programs="/opt/harness/") as session:
        async with client(session, "sk-wrong") as chat:
            with pytest.raises(openai.PermissionDeniedError):
                await chat.models.list()
        with pytest.raises(openai.PermissionDeniedError, match="may not call this model"):
            await ask(session, [USER])
        async with api(session) as claude:
            with pytest.raises(anthropic.PermissionDeniedError):
                await claude.messages.create(model="policy", max_tokens=9, messages=[{"role": "user", "content": "x"}])
        summary = session.summary()
    assert engine.requests == [] and (summary.calls, summary.foreign) == (0, 3)
    assert [(row.kind, row.reason, row.status) for row in rows] == [("rejected", "foreign", 403)] * 3
    assert US in rows[0].drift["problem"]


async def test_the_harness_s_own_programs_may_call(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine("a|"), programs=os.path.dirname(US) + "/") as session:
        await ask(session, [USER])
        assert session.summary().foreign == 0
    assert rows[0].drift == {}


@contextmanager
def forwarder(path: Path) -> Iterator[int]:
    """The forwarder, as a sandbox has it, before the socket at `path`; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (sys.executable, "-c", "print('up', flush=True); input()")
    with subprocess.Popen(
        [sys.executable, "-S", "-I", forward.__file__, str(port), str(path), *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "up\n"
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        try:
            yield port
        finally:
            os.kill(int(child), signal.SIGKILL)
            process.stdin.close()


BY_HAND = """
exec 3<>/dev/tcp/127.0.0.1/$1
printf 'POST /v1/chat/completions HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n' >&3
printf 'Authorization: Bearer %s\\r\\nUser-Agent: %s\\r\\nContent-Length: 2\\r\\n\\r\\n{}' "$2" "$3" >&3
cat <&3
"""


async def test_behind_the_forwarder_a_program_is_known_whatever_it_calls_itself(
    opened: Open, rows: list[FinishedCall]
) -> None:
    """The harness's own client is answered there; a shell with its token and its name is refused."""
    async with opened(PlayEngine("a|"), programs=US) as session:
        with forwarder(session.socket_path) as port:
            async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=session.token) as chat:
                await chat.chat.completions.create(model="policy", messages=[{"role": "user", "content": "x"}])
            name = "AsyncOpenAI/Python 3.57.0"
            shell = await asyncio.create_subprocess_exec(
                "bash", "-c", BY_HAND, "bash", str(port), session.token, name, stdout=subprocess.PIPE
            )
            answer, _ = await shell.communicate()
        assert b" 403 " in answer and session.summary().foreign == 1, answer
    assert [(row.kind, row.reason) for row in rows] == [("main", ""), ("rejected", "foreign")]
    assert "/bash may not call" in rows[1].drift["problem"]


async def test_on_tcp_nobody_names_the_program(short_dir: Path) -> None:
    sealed = replace(spec(short_dir, "one"), programs="/opt/harness/")
    async with Proxy(PlayEngine("a|"), LetterRendering()) as proxy, proxy.session(sealed) as one:
        port = await proxy.listen()
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key=one.token) as tcp:
            await tcp.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


async def test_another_client_is_answered_flagged_and_never_continued(opened: Open, rows: list[FinishedCall]) -> None:
    """The very request of the harness, sent again by hand, and its reply sent back by the harness."""
    engine = PlayEngine("first|", "theirs|", "second|")
    async with opened(engine) as session:
        await ask(session, [USER], extra_headers=HARNESS)
        theirs = await ask(session, [USER], extra_headers=CURL)
        assert theirs.choices[0].message.content == "theirs"
        echo = {"role": "assistant", "content": "theirs"}
        await ask(session, [USER, echo, USER], extra_headers=HARNESS)
        parts = segments(session.tree)
        assert session.summary().foreign == 1
    assert [(row.kind, row.parent_seq, row.fate) for row in rows] == [
        ("main", None, "delivered"), ("auxiliary", None, "delivered"), ("main", 1, "delivered"),
    ]  # fmt: skip
    assert rows[1].drift == {"foreign": "by curl, where the harness calls as claude-cli"}
    assert parts.excluded == {"auxiliary": len(rows[1].completion_ids)}


async def test_another_client_counts_against_the_caps(opened: Open) -> None:
    async with opened(PlayEngine("a|", "b|"), caps=Caps(2, 10, 2000), proxy={"park": 0.0}) as session:
        await ask(session, [USER], extra_headers=HARNESS)
        await ask(session, [USER], extra_headers=CURL)
        with pytest.raises(openai.BadRequestError, match="limit of 2 model calls"):
            await ask(session, [USER], extra_headers=CURL)


async def test_one_program_with_two_clients_of_a_kind_is_one(opened: Open, rows: list[FinishedCall]) -> None:
    async with opened(PlayEngine("a|", "b|"), rendering=family()) as session:
        for agent in ("OpenAI/Python 3.57.0", "AsyncOpenAI/Python 3.57.0"):
            async with client(session) as chat:
                messages: Any = [{"role": "user", "content": agent}]
                await chat.chat.completions.create(
                    model="policy", messages=messages, extra_headers={"User-Agent": agent}
                )
    assert [row.kind for row in rows] == ["main", "main"]


@pytest.mark.parametrize(
    ("said", "name"),
    [("claude-cli/2.1.197 (external)", "claude-cli"), ("AsyncOpenAI/Python 3", "openai"), ("", ""), (" x y", "x")],
)
def test_a_client_is_known_by_its_name_without_its_version(said: str, name: str) -> None:
    assert client_name(said) == name
