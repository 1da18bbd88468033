"""The HTTP side: one server in this process, one socket a session, requests led to their session."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from aiohttp import web

from lego.engine.base import Engine
from lego.errors import ProxyError
from lego.proxy.anthropic import Anthropic
from lego.proxy.dialect import Dialect, Problem
from lego.proxy.exchange import count, serve
from lego.proxy.foreign import programs_of
from lego.proxy.openai_chat import OpenAIChat
from lego.proxy.openai_responses import OpenAIResponses
from lego.proxy.session import Session, SessionSpec
from lego.proxy.wire import Wire
from lego.trajectory.render import Rendering

MAX_BODY = 64 * 1024 * 1024
"""Bytes of the largest request taken: 200k tokens of history are about 1 MB."""

DIALECTS: tuple[Dialect, ...] = (OpenAIChat(), OpenAIResponses(), Anthropic())

_MAX_SOCKET_PATH = 107


class Proxy:
    """What harnesses believe is their model API.

    keepalive: seconds of silence after which a waiting stream gets a comment.
    park: seconds that a request over a cap is held (the runner ends the trial meanwhile) before its final error.
    """

    def __init__(
        self,
        engine: Engine,
        rendering: Rendering,
        *,
        dialects: Sequence[Dialect] = DIALECTS,
        keepalive: float = 10.0,
        park: float = 30.0,
    ) -> None:
        self._engine = engine
        self._rendering = rendering
        self._dialects = {path: dialect for dialect in dialects for path in (*dialect.paths, *dialect.counters)}
        self._fallback = dialects[0]
        self._keepalive = keepalive
        self._park = park
        self._by_socket: dict[str, Session] = {}
        self._by_token: dict[bytes, Session] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Proxy:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every session that is still open, then the server."""
        for session in list(self._by_token.values()):
            with suppress(Exception):
                await session.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Also answer on TCP, where the token alone names the session. Returns the port."""
        site = web.TCPSite(self._started(), host, port, backlog=1024)
        await site.start()
        return site.port

    @asynccontextmanager
    async def session(self, spec: SessionSpec) -> AsyncIterator[Session]:
        """A session with its own socket, `spec.socket_dir`/proxy.sock; closed when the block ends.

        Raises ProxyError when the socket's path is too long or its token is taken, and, at the end of the block,
        the first error that a callback of `spec` raised.
        """
        digest = _digest(spec.token)
        path = spec.socket_dir.absolute() / "proxy.sock"
        if len(str(path).encode()) > _MAX_SOCKET_PATH:
            raise ProxyError(f"socket path of {len(str(path))} bytes is too long: {path}", hint="use a shorter folder")
        if digest in self._by_token or str(path) in self._by_socket:
            raise ProxyError(f"session {spec.id}: its token or socket is in use")
        session = Session(spec, self._engine, self._rendering, path)
        site = web.UnixSite(self._started(), path, backlog=1024)
        await site.start()
        # The agent's user in the sandbox is not ours; the folder and the token are what keeps others out.
        path.chmod(0o666)
        self._by_socket[str(path)] = self._by_token[digest] = session

        async def unlisten() -> None:
            self._by_socket.pop(str(path), None)
            self._by_token.pop(digest, None)
            with suppress(RuntimeError):
                await site.stop()
            path.unlink(missing_ok=True)

        session.on_close(unlisten)
        try:
            yield session
        except BaseException:
            with suppress(Exception):
                await session.close()
            raise
        await session.close()

    def _started(self) -> web.AppRunner:
        if self._runner is None:
            raise ProxyError("the proxy is not running", hint="use it as `async with Proxy(...) as proxy`")
        return self._runner

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        wire = Wire(request, self._keepalive)
        dialect = self._dialect_of(request.path)
        session: Session | None = None
        try:
            session = self._session_of(request)
            session.attach(request.transport)
            try:
                await self._route(request, session, dialect, wire)
            finally:
                session.detach()
        except Problem as problem:
            if session is not None:
                session.reject(problem, dialect.name)
            with suppress(ConnectionError):
                await wire.whole(problem.status, dialect.problem(problem))
        except ConnectionError:
            pass
        return wire.response

    async def _route(self, request: web.Request, session: Session, dialect: Dialect, wire: Wire) -> None:
        path = request.path.rstrip("/")
        if request.method == "HEAD" or (request.method == "GET" and path == ""):
            return await wire.whole(200, {})
        _refuse_foreign(request, session)
        if not _authorised(request, session.token):
            raise Problem("wrong_token", "Incorrect API key provided.")
        if request.method == "GET" and path in ("/v1/models", "/models"):
            return await wire.whole(200, _models(session.spec))
        if request.method == "GET" and path.rpartition("/")[0] in ("/v1/models", "/models"):
            return await wire.whole(200, _model(session.spec))
        if request.method != "POST" or request.path not in self._dialects:
            raise Problem("not_found", f"Unknown request URL: {request.method} {request.path}.")
        body = await _body(request)
        counter = dialect.counters.get(request.path)
        if counter is not None:
            return await count(session, dialect, body, wire, counter)
        await serve(session, dialect, body, request.headers, wire, park=self._park)

    def _dialect_of(self, path: str) -> Dialect:
        """Whose words an answer on this path has: also below a dialect's own paths, where nothing is found."""
        while path and path not in self._dialects:
            path = path.rpartition("/")[0]
        return self._dialects.get(path, self._fallback)

    def _session_of(self, request: web.Request) -> Session:
        """By socket where the request came through one, else by token."""
        name = request.transport.get_extra_info("sockname") if request.transport else None
        if isinstance(name, str | bytes):
            session = self._by_socket.get(name if isinstance(name, str) else name.decode())
        else:
            session = self._by_token.get(_digest(_token(request)))
        if session is None or session.closed:
            raise Problem("wrong_token", "Incorrect API key provided.")
        return session


def _refuse_foreign(request: web.Request, session: Session) -> None:
    """Raises Problem where a program that is not the harness's opened the socket, or stands behind the forwarder."""
    allowed = session.spec.programs
    for program in programs_of(request.transport) if allowed else ():
        if not program.startswith(allowed):
            raise Problem("foreign", f"{program} may not call this model: it is the harness's.")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _token(request: web.BaseRequest) -> str:
    authorization = request.headers.get("Authorization", "")
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _authorised(request: web.BaseRequest, token: str) -> bool:
    return hmac.compare_digest(_digest(_token(request)), _digest(token))


def _models(spec: SessionSpec) -> dict[str, Any]:
    name = spec.model_name
    return {"object": "list", "data": [_model(spec)], "has_more": False, "first_id": name, "last_id": name}


def _model(spec: SessionSpec) -> dict[str, Any]:
    """The model as OpenAI's and as Anthropic's clients read it, and the context window as servers say it."""
    context = spec.caps.context
    return {
        "id": spec.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "lego",
        "type": "model",
        "display_name": spec.model_name,
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": context,
        "max_tokens": spec.caps.max_output_tokens,
        "context_window": context,
        "max_model_len": context,
        "max_output_tokens": spec.caps.max_output_tokens,
    }


async def _body(request: web.Request) -> Mapping[str, Any]:
    try:
        body = json.loads(await request.read())
    except web.HTTPRequestEntityTooLarge:
        raise Problem("too_large", f"The request body is larger than {MAX_BODY} bytes.") from None
    except (ValueError, RecursionError):
        raise Problem("bad_request", "We could not parse the JSON body of your request.") from None
    if not isinstance(body, dict):
        raise Problem("bad_request", "The JSON body of your request must be an object.")
    return body
