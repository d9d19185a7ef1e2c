"""Running the service: a socket, one process, one event loop, one thread of linear algebra."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import math
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import LOGGING_CONFIG

from anytime.errors import AnytimeError, listed
from anytime.threads import single_blas_thread
from anytime_service.app import create_app
from anytime_service.connections import Connections, room_for
from anytime_service.errors import AddressError
from anytime_service.exchange import LINGER_S
from anytime_service.handler import Handler
from anytime_service.held import Held
from anytime_service.registry import ModelRegistry
from anytime_service.settings import Settings
from anytime_service.shedding import Shedding
from anytime_service.slicing import SlicedHttpProtocol, SlicedWebSocketProtocol

__all__ = ["Server", "bind", "build_server", "serve"]

_log = logging.getLogger("anytime_service")

PING_S = 20.0
"""Time after which a WebSocket is asked whether it is still there, and that it has to answer in."""

_DROPPED = (
    "ASGI callable returned without completing response.",  # left open so that its connection closes, see `exchange`
    "connection open",
    "ASGI callable returned without completing handshake.",  # it has, by refusing with a response
    "Invalid UTF-8 sequence received from client.",  # a client's mistake, which the client is told
)


class _OnPurpose(logging.Filter):
    """Drops what uvicorn says of things that are meant, and of every WebSocket that opens."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg not in _DROPPED and "WebSocket" not in str(record.msg)


class Server(uvicorn.Server):
    """A server that answers what is open before it closes connections, and loads models again on SIGHUP."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer every open prediction, then close."""
        state = self._state
        if state is not None:
            state.handler.drain()
            await asyncio.wait([asyncio.ensure_future(state.stream.flushed())], timeout=LINGER_S)
        await super().shutdown(sockets)
        if state is not None:
            state.handler.close()

    @property
    def _state(self) -> Any:
        return getattr(self.config.app, "state", None)

    def _hang_up(self) -> None:
        self._reload = asyncio.get_running_loop().create_task(self._reload_all())

    async def _reload_all(self) -> None:
        handler: Handler = self._state.handler
        try:
            await handler.reload()
        except (AnytimeError, OSError) as error:
            _log.error("models stay as they were: %s", error)
        else:
            _log.info("loaded again: %s", listed(handler.registry.models))


def build_server(app: ASGIApp, settings: Settings) -> Server:
    """Make a server for an application, not yet started; it takes the sockets to listen on when it runs."""
    handler: Handler | None = getattr(getattr(app, "state", None), "handler", None)
    held = Held(settings.max_held_bytes) if handler is None else handler.held
    shared = Connections(settings, held, None if handler is None else Shedding(handler))
    config = uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(SlicedHttpProtocol, shared)),
        ws=cast(Any, partial(SlicedWebSocketProtocol, shared)),
        timeout_keep_alive=cast(Any, settings.idle_timeout_s),
        ws_ping_interval=PING_S,  # a peer that has gone without a word is noticed after both
        ws_ping_timeout=PING_S,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # messages are small, and time is what matters
        log_config=_log_config(),
        server_header=False,
        # Open predictions are answered at once; a body may go on for as long as it may after any answer.
        timeout_graceful_shutdown=math.ceil(LINGER_S) + 1,
    )
    server = Server(config)
    if handler is not None:
        handler.signals.connections.set_function(lambda: len(server.server_state.connections))
    return server


@contextlib.contextmanager
def bind(settings: Settings) -> Iterator[socket.socket]:
    """Listen where the settings say; the socket closes, and a Unix socket's file goes, at the end.

    Raises
    ------
    AddressError
        The address is taken, is not this machine's, or may not be used.
    """
    place = str(settings.uds) if settings.uds else f"{settings.host}:{settings.port}"
    try:
        listening = _unix(str(settings.uds)) if settings.uds else _tcp(settings.host, settings.port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AddressError(
            f"cannot listen on {place}: {reason}; choose another with --port, --host or --uds"
        ) from error
    with listening:
        yield listening
    if settings.uds:
        settings.uds.unlink(missing_ok=True)


def serve(registry: ModelRegistry, settings: Settings) -> None:
    """Serve models until the process is told to stop; requests under way are answered first.

    Raises
    ------
    AddressError
        The address cannot be listened on.
    """
    wanted, room = settings.max_connections, room_for(settings.max_connections)
    settings = settings.model_copy(update={"max_connections": room})
    server = build_server(create_app(registry, settings), settings)
    if room < wanted:
        told = "the limit of open files (ulimit -n) leaves room for %d connections, not %d (ANYTIME_MAX_CONNECTIONS)"
        _log.warning(told, room, wanted)
    with bind(settings) as listening, single_blas_thread():
        # What was imported and loaded stays: looking through it for garbage would stop the loop for 50 ms at a time.
        gc.collect()
        gc.freeze()
        _log.info("serving %s on %s", listed(registry.models), _address(listening))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])


def _log_config() -> dict[str, Any]:
    config: dict[str, Any] = deepcopy(LOGGING_CONFIG)
    config["filters"] = {"on_purpose": {"()": _OnPurpose}}
    config["loggers"]["uvicorn.error"]["filters"] = ["on_purpose"]
    config["loggers"]["anytime_service"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    return config


def _tcp(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return socket.create_server(address[:2], family=family)


def _unix(path: str) -> socket.socket:
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        os.unlink(path)  # left behind by a server that did not stop in order
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(path)
        listening.listen()
    except BaseException:
        listening.close()
        raise
    return listening


def _address(listening: socket.socket) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
