"""A WebSocket to an ASGI application in this process, with the part of websockets' interface that the client uses."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosedError, InvalidStatus, WebSocketException
from websockets.frames import Close, CloseCode
from websockets.http11 import Response

from anytime.errors import summary

ASGIApp: TypeAlias = Callable[..., Awaitable[None]]

CLOSE_TIMEOUT_S = 1.0


class InProcessSocket:
    """One WebSocket; its messages pass through queues, and the application runs as a task of this event loop."""

    def __init__(self, app: ASGIApp, url: str, headers: Mapping[str, str], subprotocol: str) -> None:
        self.subprotocol: str | None = None
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_app.put_nowait({"type": "websocket.connect"})
        parts = urlsplit(url)
        fields = {"host": parts.netloc, **headers}
        scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": parts.scheme,
            "server": (parts.hostname, parts.port),
            "client": ("127.0.0.1", 0),
            "root_path": "",
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in fields.items()],
            "subprotocols": [subprotocol],
            "state": {},
            "extensions": {"websocket.http.response": {}},
        }
        self._task = asyncio.ensure_future(app(scope, self._to_app.get, self._from_app.put))
        self._task.add_done_callback(lambda _: self._from_app.put_nowait({"type": "end"}))

    async def open(self) -> None:
        """Wait for the handshake; raise InvalidStatus if the application refuses it."""
        message = await self._next()
        if message["type"] == "websocket.accept":
            self.subprotocol = message.get("subprotocol")
            return
        status, headers, body = 403, [], b""
        if message["type"] == "websocket.http.response.start":
            status, headers = message["status"], message.get("headers", [])
            body = (await self._next()).get("body", b"")
        fields = Headers((name.decode(), value.decode()) for name, value in headers)
        raise InvalidStatus(Response(status, HTTPStatus(status).phrase, fields, body))

    async def recv(self) -> str | bytes:
        message = await self._next()
        if message["type"] == "websocket.send":
            content = message.get("bytes")
            received: str | bytes = message["text"] if content is None else content
            return received
        raise ConnectionClosedError(
            Close(message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or ""), None
        )

    async def send(self, content: bytes) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "bytes": content})
        await asyncio.sleep(0)

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": code})
        await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
        self._task.cancel()

    async def _next(self) -> dict[str, Any]:
        message = await self._from_app.get()
        if message["type"] == "end" and not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise WebSocketException(f"the application failed: {summary(error)}") from error
        return message
