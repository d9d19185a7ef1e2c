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
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from anytime._linalg import single_blas_thread
from anytime.errors import AnytimeError, listed
from anytime_service.app import create_app, create_side_app
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import AddressError, CertificateError
from anytime_service.http.exchange import LINGER_S
from anytime_service.keys import KeyFileWatcher
from anytime_service.limits.memory import Held
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.bind import address_of, metrics_address_of
from anytime_service.server.connections import SIDE_CONNECTIONS, Connections, room_for
from anytime_service.server.metrics_server import MetricsServer
from anytime_service.server.shedding import LoadShedding
from anytime_service.server.slicing import SlicedHttpProtocol, SlicedWebSocketProtocol
from anytime_service.server.tls import read_again, tls_context
from anytime_service.settings import Settings
from anytime_service.telemetry.logs import LIMITED, WINDOW_S, log_config
from anytime_service.telemetry.tracing import load_tracing

__all__ = [
    "Server",
    "bind",
    "bind_side",
    "build_server",
    "serve",
]

TICK_MS = 100.0
"""How often uvicorn calls `on_tick`."""

SWITCH_S = 0.0005
"""How long another thread may keep the interpreter while the event loop waits for it; Python's default is 5 ms.

Reloading a model and packing spans take tens of milliseconds of Python.
"""

_log = logging.getLogger("anytime_service")

PING_S = 20.0
"""Time after which a WebSocket is asked whether it is still there, and that it has to answer in."""


class Server(uvicorn.Server):
    """A server that answers what is open before it closes connections, and reads files again on SIGHUP.

    Parameters
    ----------
    read_again : reads what the server itself has from files.
    handshake_s : how long agreeing on encryption may take.
    side : a socket for metrics and probes alone, where they are to have one.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        read_again: Callable[[], None],
        handshake_s: float,
        side: socket.socket | None = None,
    ) -> None:
        super().__init__(config)
        self._handshake_s = handshake_s
        state = self._state
        self._read_again = read_again
        self.rotation = KeyFileWatcher(state.keys, lambda: state.stream.dismiss(state.keys.holds)) if state else None
        self._side_socket = side
        self._side: MetricsServer | None = None
        self._ticked_ms: float | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to stop; meanwhile other threads give up the interpreter soon."""
        before = sys.getswitchinterval()
        lowers = before > SWITCH_S  # or another server of this process has lowered it, and restores it
        if lowers:
            sys.setswitchinterval(SWITCH_S)
        try:
            await super().serve(sockets)
        finally:
            if lowers:
                sys.setswitchinterval(before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Look for the sessions' store, and listen."""
        if self._state is not None:
            await self._state.sessions.start()
        if self._side_socket is not None:
            handler: PredictionService = self._state.handler
            side = create_side_app(handler, self._state.sessions)
            self._side = MetricsServer(side, self._side_socket, handler.settings, SIDE_CONNECTIONS, handler.held)
            await self._side.open()
        if self.config.ssl is None or sockets is None:
            await super().startup(sockets)
        else:
            await self._listen(sockets, self.config.ssl)
        if self.rotation is not None:
            self.rotation.start()
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)

    async def _listen(self, sockets: list[socket.socket], context: ssl.SSLContext) -> None:
        """Listen as uvicorn does, which waits a minute for a handshake."""
        config, loop = self.config, asyncio.get_running_loop()
        options: Any = {"config": config, "server_state": self.server_state, "app_state": self.lifespan.state}
        make = partial(config.http_protocol_class, **options)
        given: Any = {"ssl": context, "ssl_handshake_timeout": self._handshake_s, "backlog": config.backlog}
        self.servers = [await loop.create_server(make, sock=each, **given) for each in sockets]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer every open prediction, then close."""
        if self.rotation is not None:
            self.rotation.stop()
        state = self._state
        if state is not None:
            state.handler.drain()
            await asyncio.wait([asyncio.ensure_future(state.stream.flushed())], timeout=LINGER_S)
        await super().shutdown(sockets)
        if self._side is not None:
            await self._side.close()
        if state is not None:
            await state.sessions.close()
            state.handler.close()
        LIMITED.report()

    async def on_tick(self, counter: int) -> bool:
        """Measure ten times a second how late the loop is, and report the log lines that were dropped."""
        now, last, state = now_ms(), self._ticked_ms, self._state
        self._ticked_ms = now
        if last is not None and state is not None:
            state.handler.signals.lag.observe(max(now - last - TICK_MS, 0.0) / 1000.0)
        LIMITED.report(WINDOW_S)
        leave = await super().on_tick(counter)
        if self._side is not None:
            self._side.stamp(self.server_state.default_headers)
        return leave

    @property
    def _state(self) -> Any:
        return getattr(self.config.app, "state", None)

    def _hang_up(self) -> None:
        if self.rotation is not None:
            self.rotation.read()
        try:
            self._read_again()
        except CertificateError as error:
            _log.error("the certificate stays as it was: %s", error)
        self._reload = asyncio.get_running_loop().create_task(self._reload_all())

    async def _reload_all(self) -> None:
        handler: PredictionService = self._state.handler
        try:
            await handler.reload()
        except (AnytimeError, OSError) as error:
            _log.error("models stay as they were: %s", error)
        else:
            _log.info("loaded again: %s", listed(handler.registry.models))


def build_server(app: ASGIApp, settings: Settings, side: socket.socket | None = None) -> Server:
    """Make a server for an application, not yet started; it takes the sockets to listen on when it runs.

    Parameters
    ----------
    side : the socket of `bind_side`.

    Raises
    ------
    CertificateError
        The certificate, its key or the authorities cannot be used.
    """
    context = tls_context(settings)
    handler: PredictionService | None = getattr(getattr(app, "state", None), "handler", None)
    held = Held(settings.max_held_bytes) if handler is None else handler.held
    shared = Connections(settings, held, None if handler is None else LoadShedding(handler, cast(Any, app).state.keys))
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
        log_config=log_config(settings),
        server_header=False,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
        # Open predictions are answered at once; a body may go on for as long as it may after any answer.
        timeout_graceful_shutdown=math.ceil(LINGER_S) + 1,
    )
    reading = partial(read_again, context, settings) if context is not None else lambda: None
    server = Server(config, reading, settings.header_timeout_s, side)
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
    KeysError
        Other machines reach the address, and there is no key; see `reach.address_of`.
    """
    place = str(settings.uds) if settings.uds else f"{settings.host}:{settings.port}"
    try:
        listening = _unix(str(settings.uds)) if settings.uds else _tcp(*address_of(settings))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise AddressError(
            f"cannot listen on {place}: {reason}; choose another with --port, --host or --uds"
        ) from error
    with listening:
        yield listening
    if settings.uds:
        settings.uds.unlink(missing_ok=True)


@contextlib.contextmanager
def bind_side(settings: Settings) -> Iterator[socket.socket | None]:
    """Listen on the port of metrics and probes, if they have one; raise AddressError as `bind` does."""
    if settings.metrics_port is None:
        yield None
        return
    try:
        listening = _tcp(*metrics_address_of(settings, settings.metrics_port))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        place = f"{settings.metrics_host or settings.host}:{settings.metrics_port}"
        raise AddressError(
            f"cannot listen on {place} for metrics: {reason}; choose another by ANYTIME_METRICS_PORT or _HOST"
        ) from error
    with listening:
        yield listening


def serve(registry: ModelRegistry, settings: Settings) -> None:
    """Serve models until the process is told to stop; requests under way are answered first.

    Raises
    ------
    AddressError
        The address cannot be listened on.
    KeysError, CertificateError
        The file of keys, or the certificate, cannot be used.
    """
    wanted, room = settings.max_connections, room_for(settings.max_connections)
    settings = settings.model_copy(update={"max_connections": room})
    tracing = load_tracing()
    app = create_app(registry, settings, tracing)
    with bind(settings) as listening, bind_side(settings) as side, single_blas_thread():
        server = build_server(app, settings, side)
        if room < wanted:
            told = (
                "the limit of open files (ulimit -n) leaves room for %d connections, not %d (ANYTIME_MAX_CONNECTIONS)"
            )
            _log.warning(told, room, wanted)
        # What was imported and loaded stays: looking through it for garbage would stop the loop for 50 ms at a time.
        gc.collect()
        gc.freeze()
        _log.info("serving %s on %s", listed(registry.models), _address(listening, encrypted=server.config.is_ssl))
        if side is not None:
            _log.info("metrics on %s", _address(side, encrypted=False))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
        if tracing is not None:
            tracing.close()


def _tcp(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    return socket.create_server(address, family=family)


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


def _address(listening: socket.socket, *, encrypted: bool) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if encrypted else 'http'}://{host}:{name[1]}"
