"""Start of the service: one process, one event loop, one thread for linear algebra.

`bind` listens only on addresses of the loopback interface, unless API keys are set or the server is set to be insecure.
A separate port for metrics and probes is served in the same event loop, and stops after the main port.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import gc
import logging
import math
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from anytime._files import cleanup_on, is_pipe
from anytime._linalg import single_blas_thread
from anytime.errors import AnytimeError, listed, reason_of
from anytime_service.app import create_app, create_side_app
from anytime_service.clock import now_ms
from anytime_service.core.service import PredictionService
from anytime_service.errors import AddressError, CertificateError, KeysError
from anytime_service.hangup import remembered
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.connections import SIDE_CONNECTIONS, Connections, LoadShedding, raise_file_limit
from anytime_service.server.http_protocol import HttpProtocol
from anytime_service.server.websocket_protocol import WebSocketProtocol
from anytime_service.settings import Settings
from anytime_service.telemetry.logs import RATE_LIMIT, WINDOW_S, log_config
from anytime_service.telemetry.tracing import load_tracing

NEVER = 2**30
DUE_IDLE, DUE_BUSY = 100, 10_000
"""Collections of young objects, one per 700 additional objects, before a full collection."""

TICK_MS = 100.0
"""Interval at which uvicorn calls `on_tick`, in ms."""

ACCEPTED = 16
"""Connections of a port that are accepted in one turn of the event loop."""

SWITCH_S = 0.0005
"""Time that another thread may hold the interpreter while the event loop waits, in s; Python's default is 5 ms.

Reloading a model and serialising spans take tens of milliseconds of Python code.
"""

MAPPED = 1 << 20
"""Bytes of a block from which it is mapped alone; a megabyte of page faults costs as much as copying it."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)

_log = logging.getLogger("anytime_service")


@contextlib.contextmanager
def bind(settings: Settings) -> Iterator[socket.socket]:
    """Listen on the configured address; at the end close the socket and remove the file of a Unix socket.

    Raise AddressError if the address is not available, and KeysError if other machines can reach it without a key.
    """
    address = str(settings.uds) if settings.uds else f"{settings.host}:{settings.port}"
    try:
        listening = _unix(settings.uds) if settings.uds else _listening(settings.host, settings.port, settings)
        own = _file_state(settings.uds) if settings.uds else None
    except OSError as error:
        raise AddressError(
            f"cannot listen on {address}: {reason_of(error)}; choose another address with --port, --host or --uds"
        ) from error
    try:
        with listening:
            yield listening
    finally:
        if settings.uds and own == _file_state(settings.uds):  # otherwise it is the socket of another server
            settings.uds.unlink()


@contextlib.contextmanager
def bind_side(settings: Settings) -> Iterator[socket.socket | None]:
    """Listen on the separate port for metrics and probes, if one is set; raise AddressError as `bind` does."""
    address, port = settings.metrics_host or settings.host, settings.metrics_port
    try:
        listening = None if port is None else _listening(address, port)
    except OSError as error:
        raise AddressError(
            f"cannot listen on {address}:{port} for metrics: {reason_of(error)}; choose another "
            "address with ANYTIME_METRICS_PORT or ANYTIME_METRICS_HOST"
        ) from error
    with listening or contextlib.nullcontext():
        yield listening


def _listening(address: str, port: int, settings: Settings | None = None) -> socket.socket:
    """Listen at an address; the address of all IPv6 addresses accepts IPv4 too, where the system can do that.

    With settings, raise KeysError if other machines can reach the address without a key.
    """
    found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    family, host = found[0], str(found[4][0])
    is_open = settings is not None and not (settings.keyed or settings.insecure)
    if is_open and not ip_address(host).is_loopback:
        resolved = "" if host == address else f" ({host})"
        raise KeysError(
            f"host is {address!r}{resolved}, which other machines can reach, but no API key is set; set "
            "ANYTIME_API_KEYS or ANYTIME_API_KEYS_FILE, or allow access without keys with --insecure "
            "(ANYTIME_INSECURE=true)"
        )
    both = family is socket.AF_INET6 and ip_address(host).is_unspecified and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, dualstack_ipv6=both)


def _file_state(path: Path) -> tuple[int, int, int] | None:
    """Return what identifies a file at a path, None without a file; an inode alone may be used again."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _unix(path: Path) -> socket.socket:
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        path.unlink()  # a server that was killed did not remove it
    with contextlib.ExitStack() as opened:
        listening = opened.enter_context(socket.socket(socket.AF_UNIX))
        listening.bind(str(path))  # the error of `create_server` has no reason if the path is too long
        listening.listen()
        opened.pop_all()
    return listening


def control_collections() -> None:
    """Leave older objects to `collect_when_due`, and spare imported modules and loaded models.

    By itself Python collects middle-aged objects every tenth time, for 3 to 6 ms with a thousand open predictions, and
    everything when a quarter of the objects is new, for 12 to 18 ms, or 50 ms with the modules. Requests, predictions
    and closed connections leave no cycles (tests/service/server/test_collections.py), so a full collection finds
    garbage only after errors. Collections of young objects stay: 0.2 ms each, and 0.8 ms at most.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(gc.get_threshold()[0], NEVER, NEVER)


def map_large_blocks() -> None:
    """Have the C library (glibc) return freed blocks of `MAPPED` bytes and more to the system at once.

    By itself it raises this size to that of the largest freed block, up to 32 MiB. Bodies then lie between small
    blocks that stay: twenty clients that repeated 14 MB left 124 MiB free inside a heap of 306 MiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, MAPPED)
        mallopt(_TRIM_THRESHOLD, 8 * MAPPED)


def collect_when_due(*, idle: bool) -> None:
    """Collect all garbage after `DUE_IDLE` collections of young objects, or `DUE_BUSY` if a client is connected.

    Measured between the loads of tests/benchmarks/deadlines.py: 1.1 to 2 ms for 3,000 objects, none of them garbage. An
    open connection adds 30 objects (HTTP) or 100 (WebSocket). When closed connections left cycles, it was 6 to 30 ms
    for 25,000 objects, in which 19,000 were garbage.
    """
    if gc.get_threshold()[1] == NEVER and gc.get_count()[1] >= (DUE_IDLE if idle else DUE_BUSY):
        gc.collect()


class TLSContext(ssl.SSLContext):
    """Context of a listening socket; each connection uses `current` at the time when it is accepted.

    Certificate, key and client certificate authorities are read before the server listens, and again on SIGHUP. OpenSSL
    can add certificates to a context but not remove them. Therefore each reload makes a new context. It also has new
    keys for session tickets, so a client is unable to resume a session that a removed authority allowed.
    """

    current: ssl.SSLContext

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Begin a handshake; asyncio calls this for each connection."""
        return self.current.wrap_bio(*args, **options)


def tls_context(settings: Settings) -> TLSContext | None:
    """Return the context for encrypted connections; None if no certificate is set.

    Raise CertificateError if a file is missing, unreadable or invalid, or certificate and key do not match.
    """
    if settings.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs"):
            if getattr(settings, name) is not None:
                raise CertificateError(f"ANYTIME_{name.upper()} is set without ANYTIME_SSL_CERTFILE; set both")
        return None
    context = TLSContext(ssl.PROTOCOL_TLS_SERVER)
    reload_certificates(context, settings)
    return context


def reload_certificates(context: TLSContext, settings: Settings) -> None:
    """Reload the files for new connections; raises as `tls_context`, and an error changes nothing."""
    current = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate, key, authorities = cast(Path, settings.ssl_certfile), settings.ssl_keyfile, settings.ssl_ca_certs
    password = settings.ssl_keyfile_password
    for name, path in (("SSL_CERTFILE", certificate), ("SSL_KEYFILE", key), ("SSL_CA_CERTS", authorities)):
        try:
            if path is None:
                continue
            if is_pipe(path):  # on SIGHUP, reading one that nobody writes would stop the server
                raise CertificateError(f"ANYTIME_{name}: {str(path)!r} is a pipe or a device; expected a regular file")
            path.read_bytes()
        except OSError as error:
            raise CertificateError(f"ANYTIME_{name}: cannot read {str(path)!r}: {reason_of(error)}") from None
    try:
        # Without a password callback OpenSSL would prompt at the terminal.
        current.load_cert_chain(certificate, key, lambda: password.get_secret_value() if password else "")
    except (ssl.SSLError, ValueError) as error:
        pair = f"{str(certificate)!r} and {str(key)!r}" if key else f"{str(certificate)!r} alone"
        raise CertificateError(
            f"ANYTIME_SSL_CERTFILE: cannot load a certificate and its key from {pair}: {_reason(error)}; expected a "
            "matching pair in PEM format, in one file or with ANYTIME_SSL_KEYFILE, and ANYTIME_SSL_KEYFILE_PASSWORD if "
            "the key is encrypted"
        ) from None
    if authorities is not None:
        try:
            current.load_verify_locations(authorities)
        except ssl.SSLError as error:
            raise CertificateError(
                f"ANYTIME_SSL_CA_CERTS: cannot load certificates from {str(authorities)!r}: {_reason(error)}; "
                "expected PEM"
            ) from None
        current.verify_mode = ssl.CERT_REQUIRED
    context.current = current


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).lower().replace("_", " ")


class Server(uvicorn.Server):
    """A uvicorn server that answers open predictions before it closes connections, and reloads files on SIGHUP.

    It serves an application of `create_app`; `run` receives the sockets to listen on. `side` is the socket of
    `bind_side`. Raises as `tls_context`.
    """

    def __init__(self, app: ASGIApp, settings: Settings, side: socket.socket | None = None) -> None:
        self.context = tls_context(settings)
        state = self._state = cast(Any, app).state
        service: PredictionService = state.service
        shared = Connections(settings, service, LoadShedding(service, state.keys))
        super().__init__(
            uvicorn.Config(
                app,
                access_log=False,
                lifespan="off",
                http=cast(Any, partial(HttpProtocol, shared)),
                ws=cast(Any, partial(WebSocketProtocol, shared)),
                log_config=log_config(settings),
                server_header=False,
                root_path=settings.root_path,
                # Open predictions are answered at once; a body may continue for `linger_s`, as after any early answer.
                timeout_graceful_shutdown=math.ceil(service.tuning.linger_s) + 1,
            )
        )
        service.metrics.gauges["connections"].set_function(lambda: len(self.server_state.connections))
        self._settings = settings
        self._service = service
        state.keys.changed = lambda: state.stream.dismiss(state.keys.contains)
        self._listening = side
        self._side = ServerState()
        self._ticked_ms: float | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the server is stopped; meanwhile other threads release the interpreter after `SWITCH_S`."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, SWITCH_S))
        try:
            await super().serve(sockets)
        finally:
            if before > SWITCH_S:  # otherwise another server of this process has lowered it, and restores it
                sys.setswitchinterval(before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._state.sessions.start()
        if self._listening is not None:
            self._metrics = await self._serve_metrics(self._listening)
        # By default asyncio waits a minute for a TLS handshake, and accepts no limit of it without TLS.
        handshake_s = None if self.context is None else self._settings.header_timeout_s
        tls = {"ssl": self.context, "ssl_handshake_timeout": handshake_s}
        self.servers = [
            server for each in sockets or () for server in await _listen(self.config, self.server_state, each, **tls)
        ]
        self.started = True
        self._watching = asyncio.get_running_loop().create_task(
            self._state.keys.watch(self._service.tuning.key_check_s)
        )
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)
            if remembered:
                remembered.clear()
                self._on_hangup()

    async def _serve_metrics(self, listening: socket.socket) -> list[asyncio.Server]:
        """Serve metrics and probes on a socket of its own, with the limits of the main port.

        The two ports count their connections separately: a full one does not affect the other.
        """
        most = min(SIDE_CONNECTIONS, self._settings.max_connections)
        limits = self._settings.model_copy(update={"max_connections": most})
        config = uvicorn.Config(
            create_side_app(self._service, self._state.sessions),
            http=cast(Any, partial(HttpProtocol, Connections(limits, self._service))),
            ws="none",
            access_log=False,
            lifespan="off",
            log_config=None,
            server_header=False,
        )
        config.load()
        return await _listen(config, self._side, listening)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer every open prediction, then close; requests for metrics have at most a second after that."""
        self._watching.cancel()
        self._service.drain()
        linger_s = self._service.tuning.linger_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(linger_s):
                await self._service.worker.idle()
        await asyncio.wait([asyncio.ensure_future(self._state.stream.flushed())], timeout=linger_s)
        await super().shutdown(sockets)
        if self._listening is not None:
            for server in self._metrics:
                server.close()
        for connection in tuple(self._side.connections):
            connection.shutdown()
        if self._side.tasks:
            await asyncio.wait(tuple(self._side.tasks), timeout=1.0)
        await self._state.sessions.close()
        self._service.solver.close()
        self._service.worker.close()
        RATE_LIMIT.report()

    async def on_tick(self, counter: int) -> bool:
        """Measure the delay of the event loop, ten times a second, and report dropped log lines."""
        now, last = now_ms(), self._ticked_ms
        self._ticked_ms = now
        if last is not None:
            self._service.metrics.lag.observe(max(now - last - TICK_MS, 0.0) / 1000.0)
        RATE_LIMIT.report(WINDOW_S)
        collect_when_due(idle=not self.server_state.connections)
        stop = await super().on_tick(counter)
        self._side.default_headers = self.server_state.default_headers  # uvicorn has just updated the date
        return stop

    def _on_hangup(self) -> None:
        self._state.keys.reload()
        if self.context is not None:
            try:
                reload_certificates(self.context, self._settings)
            except CertificateError as error:
                _log.error("could not reload the certificate; the previous one stays in use: %s", error)
            else:
                _log.info("certificate reloaded")
        self._reload = asyncio.get_running_loop().create_task(self._reload_models())

    async def _reload_models(self) -> None:
        with contextlib.suppress(AnytimeError, OSError):  # logged by the service
            await self._service.reload()


async def _listen(
    config: uvicorn.Config, state: ServerState, sock: socket.socket, **options: Any
) -> list[asyncio.Server]:
    """Listen as uvicorn does, by a socket and its duplicates.

    uvloop accepts one connection of a socket in each turn (libuv#3696), so that in an overload, when turns are long, a
    new client would wait for all that have connected before: a second for some hundred.
    """
    make = partial(cast(Any, config.http_protocol_class), config=config, server_state=state, app_state={})
    listen = partial(asyncio.get_running_loop().create_server, make, backlog=config.backlog, **options)
    return [await listen(sock=each) for each in (sock, *(sock.dup() for _ in range(ACCEPTED - 1)))]


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
    # uvicorn raises SIGTERM again when it has stopped, which by default would end the process without a cleanup.
    with cleanup_on(signal.SIGTERM), bind(settings) as listening, bind_side(settings) as side, single_blas_thread():
        server = Server(app, settings, side)
        if possible < wanted:
            _log.warning(
                "the limit of open files (ulimit -n) permits %d connections, not %d (ANYTIME_MAX_CONNECTIONS)",
                possible,
                wanted,
            )
        control_collections()
        map_large_blocks()
        _log.info(
            "serving %s on %s", listed(registry.models), _address(listening, encrypted=server.context is not None)
        )
        if side is not None:
            _log.info("metrics on %s", _address(side, encrypted=False))
        try:
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            _log.debug("stopped by SIGINT")
        finally:
            if tracing is not None:
                tracing.close()


def _address(listening: socket.socket, *, encrypted: bool) -> str:
    name = listening.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{'https' if encrypted else 'http'}://{host}:{name[1]}"
