"""A second port for metrics and probes, in the same event loop: it answers until the last prediction has been."""

from __future__ import annotations

import asyncio
import socket
from email.utils import formatdate

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

__all__ = ["CLOSE_S", "SidePort"]

CLOSE_S = 1.0
"""How long a scrape under way at the end is waited for."""


class SidePort:
    """Serves an application on a socket of its own.

    Parameters
    ----------
    app : the application.
    listening : the socket.
    """

    def __init__(self, app: ASGIApp, listening: socket.socket) -> None:
        self._config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            access_log=False,
            lifespan="off",
            log_config=None,
            server_header=False,
        )
        self._listening = listening
        self._state = ServerState()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Begin to serve."""
        self._config.load()
        self._server = await asyncio.get_running_loop().create_server(self._protocol, sock=self._listening)

    async def close(self) -> None:
        """Serve nothing more; what is being answered is waited for, a little."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._state.connections):
            connection.shutdown()
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=CLOSE_S)

    def _protocol(self) -> HttpToolsProtocol:
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        return HttpToolsProtocol(config=self._config, server_state=self._state, app_state={})
