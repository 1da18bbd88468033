"""One response on its way to the harness: whole or as server-sent events, kept alive while nothing is sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiohttp import web

_EVENT_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Wire:
    """The response to one request. ConnectionError is raised by every method once the client is gone."""

    def __init__(self, request: web.Request, keepalive: float) -> None:
        self._request = request
        self._interval = keepalive
        self._response: web.StreamResponse | None = None
        self._keeper: asyncio.Task[None] | None = None
        # A drain may be waited for by one task alone, and so is a prepare.
        self._lock = asyncio.Lock()
        self._sent = False
        self._opening = self._ping = b""

    @property
    def response(self) -> web.StreamResponse:
        """What a handler returns."""
        return self._response if self._response is not None else web.Response(status=499)

    @property
    def begun(self) -> bool:
        """Whether headers of a stream are out: an error can then only be said inside the stream."""
        return self._response is not None

    async def whole(self, status: int, body: dict[str, Any]) -> None:
        """Send a JSON response, all of it."""
        response = web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json")
        self._response = response
        await response.prepare(self._request)
        await response.write_eof()

    def stream(self, opening: bytes, ping: bytes) -> None:
        """This is an event stream: `opening` goes out before anything else, `ping` whenever all is silent."""
        self._opening, self._ping = opening, ping
        self._keeper = asyncio.create_task(self._keep())

    async def send(self, data: bytes) -> None:
        """Send a piece of the event stream."""
        if data:
            self._sent = True
            async with self._lock:
                await self._write(data)

    async def finish(self, data: bytes) -> None:
        """Send the last piece and end the stream."""
        async with self._lock:
            response, data = await self._opened(data)
            await response.write_eof(data)

    async def stop_keeping(self) -> None:
        """No ping from here on."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)

    async def _write(self, data: bytes) -> None:
        response, data = await self._opened(data)
        await response.write(data)

    async def _opened(self, data: bytes) -> tuple[web.StreamResponse, bytes]:
        """The response, begun, and what is to be written: the opening goes before the first data."""
        if self._response is None:
            self._response = web.StreamResponse(headers=_EVENT_STREAM)
            await self._response.prepare(self._request)
            data = self._opening + data
        return self._response, data

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not self._sent and not self._lock.locked():
                async with self._lock:
                    await self._write(self._ping)
            self._sent = False
