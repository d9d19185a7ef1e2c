"""A connection without a network: a test decides how the bytes of a client are cut."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from anytime_service.core.service import PredictionService
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.connections import Connections
from anytime_service.server.http_protocol import HttpProtocol
from anytime_service.server.websocket_protocol import WebSocketProtocol
from anytime_service.settings import Settings

__all__ = ["MemoryTransport", "connect"]


class MemoryTransport(asyncio.Transport):
    """The server's end of a connection; it stores what is written.

    Attributes
    ----------
    pieces : what was written, one item for each call.
    closed : whether the server has closed it.
    reading : whether the server reads; a test sends only then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []
        self.closed = False
        self.reading = True
        self._protocol: Any = None

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def feed(self, data: bytes) -> bytes:
        """Have the server's protocol receive bytes as long as it reads, as an event loop does; return the rest."""
        while data and self.reading and not self.closed:
            buffer = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]
        return data


def connect(transport: MemoryTransport, app: ASGIApp, settings: Settings) -> ServerState:
    """Connect a client to a server of an application; return the state of the server."""
    shared = Connections(settings, PredictionService(ModelRegistry({}), settings))
    http: Any = partial(HttpProtocol, shared)
    websockets: Any = partial(WebSocketProtocol, shared)
    config = uvicorn.Config(app, http=http, ws=websockets, log_config=None, lifespan="off", proxy_headers=False)
    config.load()
    state = ServerState()
    transport.set_protocol(http(config=config, server_state=state, app_state={}))
    transport.get_protocol().connection_made(transport)
    return state
