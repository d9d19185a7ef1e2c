"""Server for a separate port for metrics and probes, in the same event loop; it stops after the last prediction."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from anytime_service.limits.memory import MemoryBudget
from anytime_service.server.connections import Connections
from anytime_service.server.slicing import SlicedHttpProtocol
from anytime_service.settings import Settings

__all__ = [
    "CLOSE_S",
    "MetricsServer",
]

CLOSE_S = 1.0
"""Time that `close` waits for requests that are being answered, in seconds."""


class MetricsServer:
    """Server of an application on a socket of its own, with the same limits as the main port.

    The two ports count their connections separately: a full main port does not affect this one, and vice versa.

    Parameters
    ----------
    app : the application.
    listening : the socket.
    settings : limits of sizes and times.
    connections : largest number of open connections.
    held : memory budget of the bytes that are stored for clients.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, settings: Settings, connections: int, held: MemoryBudget
    ) -> None:
        limits = settings.model_copy(update={"max_connections": min(connections, settings.max_connections)})
        self._config = uvicorn.Config(
            app,
            http=cast(Any, partial(SlicedHttpProtocol, Connections(limits, held))),
            ws="none",
            access_log=False,
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_keep_alive=cast(Any, settings.idle_timeout_s),
        )
        self._listening = listening
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Start serving."""
        self._config.load()
        protocol = partial(
            cast(Any, self._config.http_protocol_class), config=self._config, server_state=self._state, app_state={}
        )
        self._server = await asyncio.get_running_loop().create_server(protocol, sock=self._listening)

    def set_default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Set the headers of all further responses; the date changes every second."""
        self._state.default_headers = headers

    async def close(self) -> None:
        """Stop serving, after at most `CLOSE_S` for requests that are being answered."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=CLOSE_S)
