"""Start of the service: one process, one event loop, one thread for linear algebra."""

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
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from anytime._linalg import single_blas_thread
from anytime.errors import AnytimeError, listed, reason_of
from anytime_service.app import create_app, create_side_app
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import AddressError, CertificateError, KeysError
from anytime_service.http.exchange import LINGER_S
from anytime_service.keys import KeyFileWatcher
from anytime_service.limits.memory import MemoryBudget
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.connections import SIDE_CONNECTIONS, Connections, raise_file_limit
from anytime_service.server.shedding import LoadShedding
from anytime_service.server.slicing import SlicedHttpProtocol, SlicedWebSocketProtocol
from anytime_service.server.tls import reload_certificates, tls_context
from anytime_service.settings import Settings
from anytime_service.telemetry.logs import RATE_LIMIT, WINDOW_S, log_config
from anytime_service.telemetry.tracing import load_tracing

__all__ = [
    "CLOSE_S",
    "MetricsServer",
    "Server",
    "address_of",
    "bind",
    "bind_side",
    "build_server",
    "metrics_address_of",
    "serve",
]


def address_of(settings: Settings) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address to listen on, after resolving the host.

    Raises
    ------
    KeysError
        Other machines can reach the address, no API key is set, and the server is not set to be insecure.
    OSError
        The host is unknown.
    """
    family, host = _resolved(settings.host)
    if not (settings.keyed or settings.insecure or ip_address(host).is_loopback):
        found = "" if host == settings.host else f" ({host})"
        raise KeysError(
            f"host is {settings.host!r}{found}, which other machines can reach, but no API key is set; set "
            "ANYTIME_API_KEYS or ANYTIME_API_KEYS_FILE, or allow access without keys with --insecure "
            "(ANYTIME_INSECURE=true)"
        )
    return family, (host, settings.port)


def metrics_address_of(settings: Settings, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address to listen on for metrics, which need no key.

    Raises
    ------
    OSError
        The host is unknown.
    """
    family, host = _resolved(settings.metrics_host or settings.host)
    return family, (host, port)


def _resolved(host: str) -> tuple[socket.AddressFamily, str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    return found[0], str(found[4][0])


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


TICK_MS = 100.0
"""Interval at which uvicorn calls `on_tick`, in ms."""

SWITCH_S = 0.0005
"""Time that another thread may hold the interpreter while the event loop waits, in s; Python's default is 5 ms.

Reloading a model and serialising spans take tens of milliseconds of Python code.
"""

_log = logging.getLogger("anytime_service")

PING_S = 20.0
"""Interval between pings on a WebSocket, and time to answer one, in seconds."""


class Server(uvicorn.Server):
    """A uvicorn server that answers open predictions before it closes connections, and reloads files on SIGHUP.

    Parameters
    ----------
    reload_certificates : reloads the certificate files.
    handshake_s : longest time of a TLS handshake, in seconds.
    side : separate socket for metrics and probes; None without one.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        reload_certificates: Callable[[], None],
        handshake_s: float,
        side: socket.socket | None = None,
    ) -> None:
        super().__init__(config)
        self._handshake_s = handshake_s
        state = self._state
        self._reload_certificates = reload_certificates
        self.key_watcher = (
            KeyFileWatcher(state.keys, lambda: state.stream.dismiss(state.keys.contains)) if state else None
        )
        self._side_socket = side
        self._side: MetricsServer | None = None
        self._ticked_ms: float | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the server is stopped; meanwhile other threads release the interpreter after `SWITCH_S`."""
        before = sys.getswitchinterval()
        lowers = before > SWITCH_S  # otherwise another server of this process has lowered it, and restores it
        if lowers:
            sys.setswitchinterval(SWITCH_S)
        try:
            await super().serve(sockets)
        finally:
            if lowers:
                sys.setswitchinterval(before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Connect to the session store, and listen."""
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
        if self.key_watcher is not None:
            self.key_watcher.start()
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)

    async def _listen(self, sockets: list[socket.socket], context: ssl.SSLContext) -> None:
        """Listen like uvicorn, which alone would wait a minute for a TLS handshake."""
        config, loop = self.config, asyncio.get_running_loop()
        options: Any = {"config": config, "server_state": self.server_state, "app_state": self.lifespan.state}
        make = partial(config.http_protocol_class, **options)
        tls: Any = {"ssl": context, "ssl_handshake_timeout": self._handshake_s, "backlog": config.backlog}
        self.servers = [await loop.create_server(make, sock=each, **tls) for each in sockets]
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer every open prediction, then close."""
        if self.key_watcher is not None:
            self.key_watcher.stop()
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
        RATE_LIMIT.report()

    async def on_tick(self, counter: int) -> bool:
        """Measure the delay of the event loop, ten times a second, and report dropped log lines."""
        now, last, state = now_ms(), self._ticked_ms, self._state
        self._ticked_ms = now
        if last is not None and state is not None:
            state.handler.signals.lag.observe(max(now - last - TICK_MS, 0.0) / 1000.0)
        RATE_LIMIT.report(WINDOW_S)
        stop = await super().on_tick(counter)
        if self._side is not None:
            self._side.set_default_headers(self.server_state.default_headers)
        return stop

    @property
    def _state(self) -> Any:
        return getattr(self.config.app, "state", None)

    def _on_hangup(self) -> None:
        if self.key_watcher is not None:
            self.key_watcher.read()
        try:
            self._reload_certificates()
        except CertificateError as error:
            _log.error("could not reload the certificate; the previous one stays in use: %s", error)
        self._reload = asyncio.get_running_loop().create_task(self._reload_all())

    async def _reload_all(self) -> None:
        handler: PredictionService = self._state.handler
        try:
            await handler.reload()
        except (AnytimeError, OSError) as error:
            _log.error("could not reload the models; the previous ones stay in use: %s", error)
        else:
            _log.info("models reloaded: %s", listed(handler.registry.models))


def build_server(app: ASGIApp, settings: Settings, side: socket.socket | None = None) -> Server:
    """Return a server for an application, not yet started; `run` receives the sockets to listen on.

    Parameters
    ----------
    side : the socket of `bind_side`.

    Raises
    ------
    CertificateError
        The certificate, its key or the file of certificate authorities is invalid.
    """
    context = tls_context(settings)
    handler: PredictionService | None = getattr(getattr(app, "state", None), "handler", None)
    held = MemoryBudget(settings.max_held_bytes) if handler is None else handler.held
    shared = Connections(settings, held, None if handler is None else LoadShedding(handler, cast(Any, app).state.keys))
    config = uvicorn.Config(
        app,
        access_log=False,
        lifespan="off",
        http=cast(Any, partial(SlicedHttpProtocol, shared)),
        ws=cast(Any, partial(SlicedWebSocketProtocol, shared)),
        timeout_keep_alive=cast(Any, settings.idle_timeout_s),
        ws_ping_interval=PING_S,  # a peer that disappears silently is detected after both times
        ws_ping_timeout=PING_S,
        ws_max_size=settings.max_body_bytes,
        ws_per_message_deflate=False,  # messages are small, and latency matters most
        log_config=log_config(settings),
        server_header=False,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
        # Open predictions are answered at once; a body may continue for `LINGER_S`, as after any early answer.
        timeout_graceful_shutdown=math.ceil(LINGER_S) + 1,
    )
    reload = partial(reload_certificates, context, settings) if context is not None else lambda: None
    server = Server(config, reload, settings.header_timeout_s, side)
    if handler is not None:
        handler.signals.connections.set_function(lambda: len(server.server_state.connections))
    return server


@contextlib.contextmanager
def bind(settings: Settings) -> Iterator[socket.socket]:
    """Listen on the configured address; at the end close the socket and remove the file of a Unix socket.

    Raises
    ------
    AddressError
        The address is in use, does not belong to this machine, or is not permitted.
    KeysError
        Other machines can reach the address, and no API key is set; see `bind.address_of`.
    """
    address = str(settings.uds) if settings.uds else f"{settings.host}:{settings.port}"
    try:
        listening = _unix(str(settings.uds)) if settings.uds else _tcp(*address_of(settings))
    except OSError as error:
        raise AddressError(
            f"cannot listen on {address}: {reason_of(error)}; choose another address with --port, --host or --uds"
        ) from error
    with listening:
        yield listening
    if settings.uds:
        settings.uds.unlink(missing_ok=True)


@contextlib.contextmanager
def bind_side(settings: Settings) -> Iterator[socket.socket | None]:
    """Listen on the separate port for metrics and probes, if one is set; raise AddressError as `bind` does."""
    if settings.metrics_port is None:
        yield None
        return
    try:
        listening = _tcp(*metrics_address_of(settings, settings.metrics_port))
    except OSError as error:
        address = f"{settings.metrics_host or settings.host}:{settings.metrics_port}"
        raise AddressError(
            f"cannot listen on {address} for metrics: {reason_of(error)}; choose another address with "
            "ANYTIME_METRICS_PORT or ANYTIME_METRICS_HOST"
        ) from error
    with listening:
        yield listening


def serve(registry: ModelRegistry, settings: Settings) -> None:
    """Serve models until the process receives a signal to stop; answer running requests before the end.

    Raises
    ------
    AddressError
        Listening on the address failed.
    KeysError, CertificateError
        The key file or the certificate is invalid.
    """
    wanted, possible = settings.max_connections, raise_file_limit(settings.max_connections)
    settings = settings.model_copy(update={"max_connections": possible})
    tracing = load_tracing()
    app = create_app(registry, settings, tracing)
    with bind(settings) as listening, bind_side(settings) as side, single_blas_thread():
        server = build_server(app, settings, side)
        if possible < wanted:
            message = "the limit of open files (ulimit -n) permits %d connections, not %d (ANYTIME_MAX_CONNECTIONS)"
            _log.warning(message, possible, wanted)
        # Imported modules and loaded models stay: collecting garbage in them would stop the loop for 50 ms at a time.
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
        os.unlink(path)  # a server that was killed did not remove it
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
